"""The collectives of a job, against what its ranks counted. In: jobs of ranked.py, recorded with --gpu. Out: for each rank
and communicator whether the `collective` lines are the operations that were asked for, and whether their kernels are
joined to them.

Comparing is pure: counts of the program and lines of the trace in, differences out.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import prod

from .frame import Failed, part
from .job import EACH, NODE, end_of, gpus, job, ranks_of
from .traces import lines

# How PyTorch's flight recorder calls what it gives NCCL, and whose size counts the elements.
NAMES = {
    "all_reduce": ("AllReduce", "input_sizes"),
    "all_reduce_barrier": ("AllReduce", "input_sizes"),
    "all_gather": ("AllGather", "input_sizes"),
    "_all_gather_base": ("AllGather", "input_sizes"),
    "all_gather_into_tensor_coalesced": ("AllGather", "input_sizes"),
    "reduce_scatter": ("ReduceScatter", "output_sizes"),
    "_reduce_scatter_base": ("ReduceScatter", "output_sizes"),
    "broadcast": ("Broadcast", "input_sizes"),
}
DTYPES = {"Float": "float32", "BFloat16": "bfloat16", "Half": "float16", "Long": "int64", "Int": "int32"}
DTYPES |= {"Byte": "uint8", "Double": "float64"}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "uint8": 1, "float64": 8}
SHOWN = 6


@dataclass
class Recorded:
    """The `collective` lines of one process, and the kernels of each."""

    rank: int = None
    by_comm: dict = field(default_factory=lambda: defaultdict(list))
    without_kernel: Counter = field(default_factory=Counter)


def recorded(trace_lines):
    """By process."""
    ranks, collectives, parents, kernels = {}, [], {}, set()
    ends, depths = defaultdict(list), Counter()  # by thread: the ends of outermost groups; how many are open
    for line in trace_lines:
        kind = line.get("type")
        if kind == "process" and "rank" in line:
            ranks[line["pid"]] = line["rank"]
        elif kind == "collective":
            collectives.append(line)
        elif kind == "userspace" and line["phase"] == "B":
            if "parent" in line:
                parents[line["event_id"]] = line["parent"]
            thread = line["pid"], line["tid"]
            depths[thread] += {"ncclGroupStart": 1, "ncclGroupEnd": -1}.get(line["name"], 0)
            if line["name"] == "ncclGroupEnd" and depths[thread] == 0:
                ends[thread].append(line["event_id"])
        elif kind == "gpu" and line["kind"] == "kernel" and "nccl" in line["name"]:
            kernels.add(line.get("begin"))
    around = set(kernels)
    for call in kernels:
        while (call := parents.get(call)) is not None:
            around.add(call)
    found = defaultdict(Recorded)
    for line in collectives:
        process = found[line["pid"]]
        process.rank = ranks.get(line["pid"])
        process.by_comm[line.get("comm")].append(line)
        calls = [line["begin"]]
        if "group" in line:
            calls += [end for end in ends[line["pid"], line["tid"]] if end > line["begin"]][:1]
        process.without_kernel[line["op"]] += not any(call in around for call in calls)
    return found


def asked_of(made):
    """By process group, what a rank asked for: (operation, elements, type, peer)."""
    asked, unknown = defaultdict(list), Counter()
    asked[made["group"]] = [tuple(one) for one in made["counted"]]
    for entry in made["flight_recorder"]:
        group, name = entry["process_group"][0], entry["profiling_name"].removeprefix("nccl:")
        if group == made["group"] or name == "coalesced":
            continue
        if name not in NAMES:
            unknown[name] += 1
            continue
        op, sizes = NAMES[name]
        asked[group].append((op, sum(prod(size) for size in entry[sizes]), DTYPES.get(entry["input_dtypes"][0]), None))
    return asked, unknown


def spelt(recorded_lines, ranks):
    """The lines as a rank counts them: PyTorch may send and receive in a group instead of calling ncclAlltoAll."""
    out, group = [], []
    for line in recorded_lines:
        one = (line["op"], line["count"], line["dtype"], line.get("peer"))
        if one[0] not in ("Send", "Recv"):
            out.append(one)
            continue
        group = group + [line] if group and group[0].get("group") == line.get("group") else [line]
        out.append(one)
        if len(group) == 2 * ranks and len({one['group'] for one in group}) == 1:
            del out[-len(group) :]
            out.append(("AlltoAll", one[1], one[2], None))
            group = []
    return out


def wrong_numbers(recorded_lines):
    """Lines whose number is not the next one, or whose size is not that of their elements."""
    seq, pseq = 0, Counter()
    for line in recorded_lines:
        if line["op"] in ("Send", "Recv"):
            key = line["op"], line["peer"]
            fits, pseq[key] = line.get("pseq") == pseq[key], pseq[key] + 1
        else:
            fits, seq = line.get("seq") == seq, seq + 1
        if not fits or line["bytes"] != line["count"] * BYTES.get(line["dtype"], 0):
            yield line


def matched(ranks, made):
    """Each process group is one communicator, the same on all ranks, and its lines are what the rank asked for. Returns
    rows of a table, and what is not so."""
    comm_of, rows, faults = {}, [], []
    for rank in sorted(made):
        asked, unknown = asked_of(made[rank])
        seen = ranks.get(rank)
        if seen is None:
            faults.append(f"rank {rank} has no collectives")
            continue
        faults += [f"rank {rank}: {count} of {what}, which this part does not know" for what, count in unknown.items()]
        left = dict(seen.by_comm)
        for group, operations in asked.items():
            comm = next((comm for comm, of in left.items() if comm and spelt(of, len(made)) == operations), None)
            if comm is None:
                near = max(left, key=lambda comm: len(set(spelt(left[comm], len(made))) & set(operations)), default=None)
                faults.append(f"rank {rank}, group {group}: {difference(spelt(left.get(near, []), len(made)), operations)}")
                continue
            if comm_of.setdefault(group, comm) != comm:
                faults.append(f"group {group} is {comm_of[group]} and, on rank {rank}, {comm}")
            numbers = list(wrong_numbers(left[comm]))
            faults += [f"rank {rank}: {line}" for line in numbers[:SHOWN]]
            ops = ", ".join(f"{op} {count}" for op, count in Counter(line["op"] for line in left[comm]).items())
            rows.append([rank, group, comm, len(operations), len(left.pop(comm)), ops])
        faults += [f"rank {rank}: {len(of)} lines of {comm}, which no group asked for" for comm, of in left.items()]
    return rows, faults


def compared(section, name, ranks, made):
    rows, faults = matched(ranks, made)
    section.table(["rank", "group", "communicator", "asked for", "lines", "operations"], rows)
    section.check(not faults, f"{name}: each operation is a `collective` line. {'; '.join(faults[:SHOWN])}")
    alone = {rank: dict(+seen.without_kernel) for rank, seen in ranks.items() if +seen.without_kernel}
    section.check(not alone, f"{name}: each has a kernel of NCCL. {alone or ''}")


def difference(ours, theirs):
    at = next((at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"{len(ours)} lines, {len(theirs)} asked for; at {at} {ours[at : at + 2]}, asked for {theirs[at : at + 2]}"


@part("collectives", "Collectives of PyTorch on several GPUs, against what the ranks counted")
def collectives(machine, section):
    section.say(f"{gpus()} ranks, a GPU each.")
    for recorder in (EACH, NODE):
        with section.step(recorder):
            made = job(machine, ["operations"], recorder)
            ranks = {}
            for trace in made.traces():
                end = end_of(trace)
                section.check(end["complete"] and not end["lost"], f"{trace.name} is complete: {reasons(end)}")
                for process in recorded(lines(trace)).values():
                    if process.rank in ranks or process.rank is None:
                        raise Failed(f"a second process of rank {process.rank} in {trace.name}")
                    ranks[process.rank] = process
            compared(section, recorder, ranks, made.wrote("made"))
            said = ranks_of(machine, made.traces())
            section.table(
                ["communicator", "operation", "count", "wait, ms", "transfer, ms", "ranks"],
                [
                    [one["comm"], one["op"], one["count"], one["wait_ns"] / 1e6, (one["transfer_ns"] or 0) / 1e6, one["ranks"]]
                    for one in said["collectives"]
                ],
            )
            found = [said[key] for key in ("missing", "hangs", "mismatches")]
            section.check(not any(found), f"`gpurec ranks` finds no missing rank, hang or mismatch: {found}")
            section.say(f"Notes: {said['notes']}; skew: {said['skew']}.")


def reasons(end):
    return end.get("incomplete_because") or f"{end['events']} events, {end['lost']} lost"
