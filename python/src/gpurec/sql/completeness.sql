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
), digits as (
    select 0 as d union all select 1 union all select 2 union all select 3 union all select 4
    union all select 5 union all select 6 union all select 7 union all select 8 union all select 9
), numbers as (
    select a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d as n
    from digits a cross join digits b cross join digits c cross join digits e cross join digits f
), there as (
    select job, rank from gpurec_meta
    union
    select job, rank from gpurec_processes
), traces as (
    select job, host, rank, file, complete, ended, lost, incomplete_because, notes, end_ts - ts as duration_ns,
        case when rank is null then 1 else count(*) over (partition by job, rank) end as copies
    from gpurec_meta
    union all
    select s.job, null, n.n, null, false, false, null, null, null, null, 0
    from sizes s
    join numbers n on n.n < s.ranks
    left join there t on t.rank = n.n and t.job is not distinct from s.job
    where t.rank is null
)
select job, host, cast(rank as bigint) as rank, file, complete, ended, lost, incomplete_because, notes, duration_ns, copies
from traces
order by rank, host, file
