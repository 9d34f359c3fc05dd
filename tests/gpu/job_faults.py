"""Jobs with a fault that `gpurec ranks` must name, and the clocks of a job. In: jobs of ranked.py with a planted fault.
Out: what `ranks` says, and whether it names rank, cause and line.
"""

import json
import re

from .account import HEAD, row
from .frame import PROGRAMS, part
from .job import EACH, NODE, end_of, gpus, job, ranks_of

OPTIONS = ("--gpu", "--stacks")
SLOW = {  # the fault, and the kinds of cause that name it
    "sleep": ["own_code"],
    "kernels": ["gpu_busy", "call"],
    "loader": ["own_code"],
}
PLANTED_NS = [0, 41_000_000, -28_000_000, 7_300_000, -50_000_000, 13_000, 50_000_000, -1_900_000]


def line_of(fault):
    """The line of ranked.py with this fault, as a call site names it."""
    for number, text in enumerate((PROGRAMS / "ranked.py").read_text().splitlines(), 1):
        if re.search(rf"# late: {fault}$", text):
            return f"ranked.py:{number}"
    raise KeyError(fault)


@part("stragglers", "Ranks that are late, and the clocks of a job")
def stragglers(machine, section):
    slow = gpus() - 1
    with section.step("No rank is slowed"):
        made = job(machine, ["even"], EACH, OPTIONS)
        said = ranks_of(machine, made.traces())
        show(section, said)
        even = said["skew"]["p50_ns"]
        section.check(not said["hangs"] and not said["mismatches"], "no hang and no mismatch is found")
    with section.step("Clocks"):
        clocks(machine, section, made)
    for fault, kinds in SLOW.items():
        with section.step(f"Rank {slow} is slowed: {fault}"):
            made = job(machine, [fault, slow], EACH, OPTIONS)
            said = ranks_of(machine, made.traces())
            show(section, said)
            first = said["stragglers"][0] if said["stragglers"] else {}
            causes = first.get("causes", [])
            section.check(first.get("rank") == slow, f"rank {slow} is the first straggler")
            section.check(bool(causes) and causes[0]["kind"] in kinds, f"its first cause is {' or '.join(kinds)}")
            section.say(f"Median skew {said['skew']['p50_ns'] / 1e6:.3f} ms, without the fault {even / 1e6:.3f} ms.")
            section.block(machine.read("ranks", "--color", "never", "--width", "160", *made.traces())[:3500])


@part("stopped", "A rank that reduces another number of elements, and one that stops")
def stopped(machine, section):
    faulty = gpus() - 1
    for recorder in (EACH, NODE):
        for fault in ("count", "stops"):
            with section.step(f"Rank {faulty}: {fault}, {recorder}"):
                made = job(machine, [fault, faulty], recorder, OPTIONS, expected=None)
                said = ranks_of(machine, made.traces())
                section.block(machine.read("ranks", "--color", "never", "--width", "160", *made.traces())[:5000])
                section.block(json.dumps({key: said[key] for key in ("mismatches", "hangs")}, indent=1)[:6000])
                judged(section, said, fault, faulty)
                accounts(section, made)


def judged(section, said, fault, faulty):
    if fault == "count":
        values = [one["values"] for one in said["mismatches"] if one["field"] == "count"]
        odd = [rank for one in values for rank, value in one.items() if list(one.values()).count(value) == 1]
        section.check(bool(values), f"a mismatch of `count` is found: {values}")
        section.check(str(faulty) in odd, f"rank {faulty} has a value of its own")
        text = json.dumps(said["mismatches"])
    else:
        missing = [rank for hang in said["hangs"] for rank in hang["missing"]]
        section.check(missing == [faulty], f"rank {faulty} is missing in the hang: {missing}")
        text = json.dumps(said["hangs"])
    section.check(line_of("count") in text, f"the line of the collective is named: {line_of('count')}")


def accounts(section, made):
    """What came of the GPU work: the ranks end by os._exit, while a kernel waits for the others."""
    for trace in made.traces():
        end = end_of(trace)
        section.table(HEAD, [row(trace.name, end["gpu"])])
        section.check(not end["lost"], f"{end['lost']} events of {trace.name} were lost")


def show(section, said):
    rows = []
    for one in said["stragglers"][:4]:
        causes = "; ".join(
            f"{cause['kind']} {cause.get('name') or ''} {cause.get('site') or ''} {cause['excess_ns'] / 1e6:.1f} ms"
            for cause in one["causes"][:3]
        )
        rows.append([one["rank"], one["collectives"], f"{one['cost_ns'] / 1e6:.1f}", one["arrival"], causes])
    section.table(["rank", "last at", "cost, ms", "arrival", "causes"], rows)
    section.say(f"Skew {said['skew']}. Notes: {said['notes']}.")


# --- clocks ---------------------------------------------------------------------------------------------------------


def clocks(machine, section, made):
    """All ranks are on one host. As if each had a host of its own, with its clock as it is, and set wrong."""
    said = ranks_of(machine, made.traces())
    section.check(len(said["clocks"]) == 1, f"as recorded, one clock: {said['clocks']}")
    for title, planted in [("as it is", [0] * len(PLANTED_NS)), ("set wrong", PLANTED_NS)]:
        traces = [apart(machine, trace, rank, planted[rank % 8]) for rank, trace in enumerate(made.traces())]
        found = ranks_of(machine, traces)["clocks"]
        rows, within = [], True
        for one in found:
            rank = int(one["host"].removeprefix("host-"))
            off = one["offset_ns"] - (planted[rank % 8] - planted[0])
            within &= one["error_ns"] is not None and abs(off) <= one["error_ns"]
            cells = [one["host"], one["offset_ns"], planted[rank % 8] - planted[0], off, one["error_ns"]]
            rows.append([*cells, one["drift_ppm"], one["source"], one["bounds"]])
        section.say(f"Each rank as a host of its own, the clock {title}:")
        section.table(["host", "offset, ns", "planted", "wrong by", "error, ns", "drift, ppm", "source", "bounds"], rows)
        section.check(len(found) == len(traces) and within, "each offset is within its error")
        for trace in traces:
            trace.unlink()


def apart(machine, trace, rank, planted_ns):
    """A copy of a trace with the header of another host."""
    made = machine.made / f"host-{rank}.jsonl"
    with open(trace) as text, open(made, "w") as out:
        header = json.loads(next(text))
        header["host"] = f"host-{rank}"
        header["clock"]["boot_id"] = f"boot-{rank}"
        header["clock"]["realtime_ns"] += planted_ns
        out.write(json.dumps(header) + "\n")
        out.writelines(text)
    return made
