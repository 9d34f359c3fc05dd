-- Functions and the errors that they returned, by rank; `first_ts` is the first failure.
select job, rank, host, name, error, count(*) as count,
    cast(sum(case when depth = 0 then 1 else 0 end) as bigint) as outermost, min(ts) as first_ts
from gpurec_calls
where error is not null
group by job, rank, host, name, error
order by first_ts, name, error
