-- GPU kernels by rank, with the mean time on the median rank: a slow or throttled GPU stands out by its ratio.
with by_rank as (
    select job, rank, host, name, count(*) as count, cast(sum(duration_ns) as bigint) as total_ns,
        avg(duration_ns) as mean_ns, min(duration_ns) as min_ns, max(duration_ns) as max_ns
    from gpurec_gpu
    where kind = 'kernel'
    group by job, rank, host, name
), middle as (
    select job, name, median(mean_ns) as median_ns
    from by_rank
    group by job, name
)
select r.job, r.name, r.rank, r.host, r.count, r.total_ns, r.mean_ns, r.min_ns, r.max_ns,
    case when m.median_ns > 0 then r.mean_ns / m.median_ns end as ratio
from by_rank r
join middle m on m.name = r.name and m.job is not distinct from r.job
order by r.total_ns desc, r.name, r.rank
