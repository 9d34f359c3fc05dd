-- When the kernel of each collective ran: the call that submitted it is the collective's own, or inside that one.
with work as (
    select trace, begin as call, ts, ts + duration_ns as done
    from gpurec_gpu
    where kind = 'kernel' and begin is not null and lower(name) like '%nccl%'
), nested as (
    select trace, event_id, parent
    from gpurec_calls
    where parent is not null
), inner_calls as (
    select w.trace, w.call, w.ts, w.done, c.parent as up1
    from work w left join nested c on c.trace = w.trace and c.event_id = w.call
), outer_calls as (
    select i.trace, i.call, i.ts, i.done, i.up1, c.parent as up2
    from inner_calls i left join nested c on c.trace = i.trace and c.event_id = i.up1
), candidates as (
    select trace, call as begin, ts, done from outer_calls
    union all
    select trace, up1, ts, done from outer_calls where up1 is not null
    union all
    select trace, up2, ts, done from outer_calls where up2 is not null
)
select trace, begin, min(ts) as start_ts, max(done) as end_ts
from candidates
group by trace, begin
