-- Communicators and operations: how often, how long ranks waited for the last one, and how long they transferred then.
select job, comm, op, cast(max(nranks) as bigint) as nranks, count(distinct seq) as count,
    cast(sum(last_arrival - arrival) as bigint) as wait_ns,
    cast(sum(case when gpu_end > last_arrival then gpu_end - last_arrival when gpu_end is not null then 0 end) as bigint)
        as transfer_ns
from gpurec_arrivals
where arrived = nranks and nranks > 1
group by job, comm, op
order by wait_ns desc, comm, op
