-- Each rank at each collective. It arrives when its kernel starts on the GPU; where that is not known of every rank, all
-- are compared by when they called.
with calls as (
    select trace, event_id, ts
    from gpurec_calls
    where lower(name) like '%nccl%'
), joined as (
    select c.job, c.host, coalesce(c.rank, c.comm_rank) as rank, c.trace, c.begin, c.pid,
        c.comm, c.comm_rank, c.nranks, c.seq, c.op, c.count, c.dtype, c.root, c.redop,
        coalesce(e.ts, c.ts) as enqueued, g.start_ts, g.end_ts as gpu_end,
        row_number() over (partition by c.job, c.comm, c.seq, c.comm_rank order by c.trace, c.event_id) as copy
    from gpurec_collectives c
    left join gpurec_collective_gpu g on g.trace = c.trace and g.begin = c.begin
    left join calls e on e.trace = c.trace and e.event_id = c.begin
    where c.comm is not null and c.seq is not null
), counted as (
    select *, count(*) over (partition by job, comm, seq) as arrived,
        count(start_ts) over (partition by job, comm, seq) as started
    from joined
    where copy = 1
), placed as (
    select job, host, rank, trace, begin, pid, comm, comm_rank, nranks, seq, op, count, dtype, root, redop,
        enqueued, gpu_end, arrived,
        case when started = arrived then start_ts else enqueued end as arrival,
        case when started = arrived then 'gpu' else 'enqueue' end as arrival_kind
    from counted
)
select *, max(arrival) over (partition by job, comm, seq) as last_arrival
from placed
