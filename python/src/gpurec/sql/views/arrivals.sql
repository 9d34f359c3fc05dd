-- Each rank at each collective. It arrives when its kernel starts on the GPU; where that is not known of every rank, all
-- are compared by when they called. In a communicator that was split, a rank may not know its number in it, nor how many
-- there are: there `comm_rank` is its rank in the job and 2^31.
with parts as (
    select *, coalesce(comm_rank, 2147483648 + rank) as member
    from gpurec_collectives
    where comm is not null and seq is not null
), sizes as (
    select job, comm, count(distinct member) as members
    from parts
    group by job, comm
), calls as (
    select trace, event_id, ts
    from gpurec_calls
    where lower(name) like '%nccl%'
), joined as (
    select c.job, c.host, coalesce(c.rank, c.comm_rank) as rank, c.trace, c.begin, c.pid,
        c.comm, c.member as comm_rank, coalesce(c.nranks, s.members) as nranks, c.seq, c.op, c.count, c.dtype, c.root, c.redop,
        coalesce(e.ts, c.ts) as enqueued, g.start_ts, g.end_ts as gpu_end,
        row_number() over (partition by c.job, c.comm, c.seq, c.member order by c.trace, c.event_id) as copy
    from parts c
    join sizes s on s.comm = c.comm and s.job is not distinct from c.job
    left join gpurec_collective_gpu g on g.trace = c.trace and g.begin = c.begin
    left join calls e on e.trace = c.trace and e.event_id = c.begin
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
