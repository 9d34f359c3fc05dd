-- Each GPU of a rank: for how long anything ran on it, and for how long nothing did between the first and the last.
with work as (
    select job, host, rank, trace, device, ts, ts + duration_ns as done,
        max(ts + duration_ns) over (partition by job, host, rank, trace, device order by ts, event_id
            rows between unbounded preceding and 1 preceding) as before
    from gpurec_gpu
), spans as (
    select job, host, rank, trace, device, ts, done,
        case when before is null or before <= ts then done - ts when done > before then done - before else 0 end as busy,
        case when before < ts then 1 else 0 end as gap
    from work
), by_gpu as (
    select job, host, rank, trace, device, count(*) as count, cast(sum(busy) as bigint) as busy_ns,
        max(done) - min(ts) as span_ns, cast(sum(gap) as bigint) as gaps
    from spans
    group by job, host, rank, trace, device
)
select job, host, rank, device, count, busy_ns, span_ns - busy_ns as idle_ns, gaps,
    case when span_ns > 0 then cast(busy_ns as double) / span_ns end as busy
from by_gpu
order by rank, host, device
