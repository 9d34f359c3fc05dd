-- Each trace: whether it is whole, and why not; `copies` above 1 is a rank that is there twice. A rank without a trace
-- has a row without a file.
with sizes as (
    select job, max(ranks) as ranks
    from (
        select job, world_size as ranks from gpurec_processes
        union all
        select job, nranks from gpurec_collectives
    ) known
    group by job
), there as (
    select job, rank from gpurec_meta
    union
    select job, rank from gpurec_processes
), traces as (
    select job, host, rank, file, complete, ended, lost, incomplete_because, notes, end_ts - ts as duration_ns,
        case when rank is null then 1 else count(*) over (partition by job, rank) end as copies
    from gpurec_meta
    union all
    select s.job, null, numbers.n, null, false, false, null, null, null, null, 0
    from sizes s
    join range(100000) as numbers (n) on numbers.n < s.ranks
    left join there t on t.rank = numbers.n and t.job is not distinct from s.job
    where t.rank is null
)
select job, host, cast(rank as bigint) as rank, file, complete, ended, lost, incomplete_because, notes, duration_ns, copies
from traces
order by rank, host, file
