-- Ranks that arrived last at collectives: at how many, and for how long the others waited for them.
with placed as (
    select job, rank, arrival_kind,
        sum(last_arrival - arrival) over (partition by job, comm, seq) as cost,
        row_number() over (partition by job, comm, seq order by arrival desc, comm_rank desc) as place
    from gpurec_arrivals
    where arrived = nranks and nranks > 1
)
select job, rank, count(*) as collectives, cast(sum(cost) as bigint) as cost_ns,
    case when 2 * sum(case when arrival_kind = 'gpu' then 1 else 0 end) >= count(*) then 'gpu' else 'enqueue' end as arrival
from placed
where place = 1
group by job, rank
order by cost_ns desc, rank
