"""A rank of a job. In: a folder, what to do, the rank that has the fault, and a number of steps; torchrun's variables. Out:
a line of JSON; with `operations` also FOLDER/made-RANK.json: the operations of NCCL that this rank asked for.

operations   collectives, sends and receives on a group of their own, and steps of DDP and FSDP
even         steps of DDP
sleep, kernels, loader
             the same, and one rank sleeps before each step, gives its GPU more work, or has a slow data loader
count, stops at half of the steps one rank reduces another number of elements, or stops; all end after some seconds
timed        steps of DDP, timed: FOLDER/timed-RANK.json; `profiled`: under torch.profiler

The operations of the group are counted here, those of DDP and FSDP by PyTorch's flight recorder. The comment `late` is
on the line that `ranks` must name.
"""

import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "20000")
os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "20000")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.distributed import fsdp  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS, BATCH, WARM_UP = 60, 2048, 3
TIMED = 150
LATE = 0.02  # seconds a step
LONGEST = 8  # seconds that a job waits after its fault


def main():
    folder, what = Path(sys.argv[1]), sys.argv[2]
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    has_fault = len(sys.argv) > 3 and rank == int(sys.argv[3])
    if what == "operations":
        made = operations(rank)
        (folder / f"made-{rank}.json").write_text(json.dumps(made))
    elif what in ("timed", "profiled"):
        (folder / f"timed-{rank}.json").write_text(json.dumps(timed(what == "profiled")))
    else:
        count = int(sys.argv[4]) if len(sys.argv) > 4 else STEPS
        steps(count, what if has_fault else "even", broken=what in ("count", "stops"))
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "what": what}))


# --- operations -----------------------------------------------------------------------------------------------------


def operations(rank):
    group = dist.new_group()
    counted = on_group(group, rank, dist.get_world_size())
    model = DistributedDataParallel(training.net().to("cuda"))
    train(model, 8)
    sharded = training.net().to("cuda")
    for layer in sharded:
        if list(layer.parameters()):
            fsdp.fully_shard(layer)
    train(fsdp.fully_shard(sharded), 8)
    dist.barrier()
    torch.cuda.synchronize()
    return {"group": group.group_name, "counted": counted, "flight_recorder": by_flight_recorder()}


def on_group(group, rank, ranks):
    """[operation, elements, type, the other rank]: some of each operation, in this order."""
    made, names = [], {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int64: "int64"}
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for number in range(12):
        for type_ in names:
            count = 1000 + 37 * number
            one = torch.ones(count, dtype=type_, device="cuda")
            all_ = torch.ones(count * ranks, dtype=type_, device="cuda")
            other = torch.empty_like(all_)
            dist.all_reduce(one, group=group)
            made.append(["AllReduce", count, names[type_], None])
            dist.all_gather_into_tensor(all_, one, group=group)
            made.append(["AllGather", count, names[type_], None])
            dist.reduce_scatter_tensor(one, all_, group=group)
            made.append(["ReduceScatter", count, names[type_], None])
            dist.broadcast(one, src=number % ranks, group=group)
            made.append(["Broadcast", count, names[type_], None])
            dist.all_to_all_single(other, all_, group=group)
            made.append(["AlltoAll", count, names[type_], None])
            pairs = [dist.P2POp(dist.isend, one, right, group), dist.P2POp(dist.irecv, other[:count], left, group)]
            for work in dist.batch_isend_irecv(pairs):
                work.wait()
            made += [["Send", count, names[type_], right], ["Recv", count, names[type_], left]]
    torch.cuda.synchronize()
    return made


def by_flight_recorder():
    dump = torch._C._distributed_c10d._dump_nccl_trace
    kept = ["process_group", "profiling_name", "input_sizes", "output_sizes", "input_dtypes", "collective_seq_id"]
    return [{key: entry.get(key) for key in [*kept, "is_p2p"]} for entry in pickle.loads(dump(True, False, False))["entries"]]


# --- steps ----------------------------------------------------------------------------------------------------------


def train(model, count):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, training.WIDTH, device="cuda")
    for _ in range(count):
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()


def batches(count, seconds):
    host = torch.randn(BATCH, training.WIDTH)
    for _ in range(count):
        time.sleep(seconds)  # late: loader
        yield host


def steps(count, fault, broken):
    model = DistributedDataParallel(training.net().to("cuda"))
    train(model, WARM_UP)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    square, sums = torch.randn(4096, 4096, device="cuda"), torch.zeros(64, device="cuda")
    for number, batch in enumerate(batches(count, LATE if fault == "loader" else 0)):
        if fault == "sleep":
            time.sleep(LATE)  # late: sleep
        if fault == "kernels":
            for _ in range(8):
                square = torch.mm(square, square).clamp_(-1, 1)  # late: kernels
        optimizer.zero_grad(set_to_none=True)
        loss = model(batch.to("cuda")).square().mean()
        loss.backward()
        optimizer.step()
        if broken and number == count // 2:
            break_off(fault, sums)
        dist.all_reduce(sums)
        sums.sum().item()  # a wait in each step, as programs that print their loss have one


def break_off(fault, sums):
    """All ranks of a broken job end by themselves: no rank waits for the watchdog of PyTorch."""
    torch.cuda.synchronize()
    threading.Timer(LONGEST, os._exit, [3]).start()
    if fault == "stops":
        time.sleep(2 * LONGEST)  # late: stops
    part = sums[: len(sums) // 2] if fault == "count" else sums
    dist.all_reduce(part)  # late: count
    torch.cuda.synchronize()
    time.sleep(2 * LONGEST)


def timed(profiled):
    model = DistributedDataParallel(training.net().to("cuda"))
    train(model, WARM_UP)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=activities) if profiled else None
    if profiler:
        profiler.__enter__()
        train(model, WARM_UP)
        torch.cuda.synchronize()
    began = time.monotonic_ns()
    train(model, TIMED)
    torch.cuda.synchronize()
    took = time.monotonic_ns() - began
    if profiler:
        profiler.__exit__(None, None, None)
    return {"ms": took / 1e6 / TIMED}


if __name__ == "__main__":
    main()
