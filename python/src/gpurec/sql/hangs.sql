-- Ranks that did not come to the last collective of a communicator, though others were in it for a second before the
-- rank's trace ended, and the call that each was in then.
with reached as (
    select job, comm, comm_rank, max(rank) as rank, max(host) as host, max(trace) as trace, max(pid) as pid,
        max(seq) as seq, max_by(op, seq) as op, max_by(enqueued, seq) as enqueued
    from gpurec_arrivals
    group by job, comm, comm_rank
), highest as (
    select *, max(seq) over (partition by job, comm) as last_seq
    from reached
), stands as (
    select *, min(case when seq = last_seq then enqueued end) over (partition by job, comm) as since
    from highest
), open_calls as (
    select trace, pid, max_by(name, event_id) as in_call, max_by(site, event_id) as site
    from gpurec_calls
    where duration_ns is null and ended in ('in_flight', 'died') and depth = 0
    group by trace, pid
), open_ioctls as (
    select trace, pid, max_by(coalesce(request, name), event_id) as in_driver
    from gpurec_driver
    where duration_ns is null and ended in ('in_flight', 'died')
    group by trace, pid
), exits as (
    select distinct trace, pid, true as has_exited
    from gpurec_processes
    where name = 'exit'
)
select s.job, s.comm, s.last_seq as seq, s.rank, s.host, s.seq as own_seq, s.op as own_op, m.end_ts - s.since as stood_ns,
    c.in_call, c.site, d.in_driver
from stands s
join gpurec_meta m on m.trace = s.trace
left join exits e on e.trace = s.trace and e.pid = s.pid
left join open_calls c on c.trace = s.trace and c.pid = s.pid
left join open_ioctls d on d.trace = s.trace and d.pid = s.pid
where s.seq < s.last_seq and (e.has_exited or m.end_ts - s.since >= 1000000000)
order by stood_ns desc, s.comm, s.comm_rank
