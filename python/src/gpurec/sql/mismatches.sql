-- Collectives that the ranks called with different values: one row for each rank and field that differs.
with fields as (
    select job, comm, seq, rank, comm_rank, 'op' as field, op as value from gpurec_arrivals
    union all
    select job, comm, seq, rank, comm_rank, 'count', cast(count as varchar(20)) from gpurec_arrivals
    union all
    select job, comm, seq, rank, comm_rank, 'dtype', dtype from gpurec_arrivals
    union all
    select job, comm, seq, rank, comm_rank, 'root', cast(root as varchar(20)) from gpurec_arrivals
    union all
    select job, comm, seq, rank, comm_rank, 'redop', redop from gpurec_arrivals
), compared as (
    select job, comm, seq, rank, comm_rank, field, value,
        min(value) over (partition by job, comm, seq, field) as least,
        max(value) over (partition by job, comm, seq, field) as most,
        count(value) over (partition by job, comm, seq, field) as known,
        count(*) over (partition by job, comm, seq, field) as ranks
    from fields
)
select job, comm, seq, field, rank, value
from compared
where least <> most or (known > 0 and known < ranks)
order by comm, seq, field, comm_rank
