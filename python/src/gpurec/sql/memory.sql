-- Memory by call site and rank: what was allocated there, and what is still held when the trace ends. That is null where
-- the trace's own summary does not know it (frees were not recorded, or the program ran before).
with followed as (
    select job, host, rank, trace, site, space, op, size,
        lead(op) over (partition by trace, pid, space, ptr order by event_id) as next_op
    from gpurec_memory
), traces as (
    select trace, max(case when summary like '%"memory.held":"%' then 0 else 1 end) as is_known
    from gpurec_meta
    group by trace
), counted as (
    select f.*, case when next_op is null then 1 else 0 end as is_held, coalesce(t.is_known, 1) as is_known
    from followed f
    left join traces t on t.trace = f.trace
    where op = 'alloc'
)
select job, rank, host, space, site, count(*) as allocations, cast(sum(size) as bigint) as allocated_bytes,
    case when min(is_known) = 1 then cast(sum(is_held) as bigint) end as held,
    case when min(is_known) = 1 then cast(sum(case when is_held = 1 then size else 0 end) as bigint) end as held_bytes
from counted
group by job, rank, host, space, site
order by held_bytes desc nulls last, allocated_bytes desc, rank
