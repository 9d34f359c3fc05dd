-- Memory by call site and rank: what was allocated there, and what is still held when the trace ends.
with followed as (
    select job, host, rank, site, space, op, size,
        lead(op) over (partition by trace, pid, space, ptr order by event_id) as next_op
    from gpurec_memory
)
select job, rank, host, space, site, count(*) as allocations, cast(sum(size) as bigint) as allocated_bytes,
    cast(sum(case when next_op is null then 1 else 0 end) as bigint) as held,
    cast(sum(case when next_op is null then size else 0 end) as bigint) as held_bytes
from followed
where op = 'alloc'
group by job, rank, host, space, site
order by held_bytes desc, allocated_bytes desc, rank
