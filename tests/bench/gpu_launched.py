"""What --gpu costs PyTorch. In: a machine with PyTorch and a GPU, a gpurec. Out: samples and figures; (l).

The library of --gpu is loaded when CUDA is initialised, and stays. So gpurec launches a new process in each round; no
other process is measured meanwhile, because gpurec's hooks are in all of them. Two other processes run through all
rounds: one that no tool has ever recorded, and one for torch.profiler, because CUPTI stays loaded in it and slows it
down even while the profiler is off. So --gpu and torch.profiler are compared with processes without CUPTI.
"""

import json
import time

from .frame import Failed, Figure, Sample, part
from .gpu import MS, ONLY, PROFILER, Worker, apart
from .tools import end_line

WORKS = ["launch", "inference", "training", "graphed"]
SHARE = 0.6  # of the usual length of a loop
MINUTES = 8.2  # no round begins that would end later
GPUREC, LANE, GRAPHS = "gpurec", "gpurec --gpu", "gpurec --gpu=graphs"
LANE_ONLY = f"gpurec --gpu --only {ONLY}"
BESIDE = "nothing, beside torch.profiler"
RECORDING = {GPUREC: [], LANE: ["--gpu"], LANE_ONLY: ["--gpu", "--only", ONLY], GRAPHS: ["--gpu=graphs"]}
WORKS_OF = {GRAPHS: ["graphed"]}  # else all
LOSSES = ["dropped", "no_room", "no_times", "killed", "no_lane"]
FACTOR = "times as long"  # as without it: --gpu compared with gpurec alone, torch.profiler with no tool
TARGETS = {("inference", LANE): "<= 1.1"}
BEYOND = {"launch": "<= 0.1", "training": "<= 0.1"}


@part("gpu-launched", "(l) on a GPU: PyTorch launched with --gpu, against torch.profiler; 8 minutes, not by itself", 11)
def gpu_launched(bench):
    with apart(bench):
        yield from measured(bench)


def measured(bench):
    until = time.monotonic() + MINUTES * 60
    yield from figures()
    plain = Worker(bench, "plain", [SHARE, ",".join(WORKS)], until)
    about = plain.ready()
    bench.say(f"{about['gpu']}, torch {about['torch']}, steps a loop {about['steps']}")
    steps = json.dumps(about["steps"])
    profiled = Worker(bench, "profiled", [SHARE, ",".join(WORKS), steps], until)
    profiled.ready()
    tools, longest = ["nothing", PROFILER, *RECORDING], 0
    for number in bench.each_round():
        start = time.monotonic()
        if start + longest > until:
            bench.say(f"the time is over after {number} rounds")
            break
        took = {}
        for tool in bench.in_turn(number, tools):
            try:
                for sample in one_tool(bench, tool, plain, profiled, steps, until):
                    took[sample.case, sample.tool] = sample.value
                    yield sample
            except Failed as failed:
                bench.missing(f"{tool}: {failed}")
                tools.remove(tool)
        yield from factors(took)
        longest = max(longest, time.monotonic() - start)
        bench.say(f"round {number + 1} took {time.monotonic() - start:.0f} s")
    for worker in (plain, profiled):
        worker.end()


def one_tool(bench, tool, plain, profiled, steps, until):
    if tool == "nothing":
        yield from loops(plain, tool, WORKS)
    elif tool == PROFILER:
        yield from loops(profiled, BESIDE, WORKS)
        yield from loops(profiled, tool, WORKS, "profile-gpu")
    else:
        yield from recorded(bench, tool, steps, until)


def loops(worker, tool, works, how="run"):
    for work in works:
        # The first run does not count: what is new costs more.
        worker.run(work, how)
        yield Sample(work, tool, MS, worker.run(work, how))


def recorded(bench, tool, steps, until):
    trace = bench.folder / "launched.jsonl"
    trace.unlink(missing_ok=True)
    works = WORKS_OF.get(tool, WORKS)
    recorder = [bench.gpurec, "-q", *RECORDING[tool], "-o", trace, "--"]
    worker = Worker(bench, "recorded", [SHARE, ",".join(works), steps], until, recorder)
    worker.ready()
    yield from loops(worker, tool, works)
    worker.end()
    if worker.process.returncode:
        raise Failed(f"gpurec ended with {worker.process.returncode}: {worker.errors.read_text().strip()[-300:]}")
    end = end_line(trace)
    trace.unlink()
    yield Sample("all loops", tool, "events", end["events"])
    yield Sample("all loops", tool, "lost", end["lost"])
    if "--gpu" in tool:
        account = end.get("gpu") or {}
        if not account.get("delivered"):
            raise Failed("no GPU work was delivered: the cost is not that of a recording")
        yield Sample("all loops", tool, "records dropped", account["dropped"])
        for reason in account["reasons"]:
            if reason["code"] in LOSSES:
                yield Sample("all loops", tool, f"reason {reason['code']}", reason["count"])


def factors(took):
    """How many times as long a loop takes with each way to record GPU work as without it, in one round."""
    for work in WORKS:
        for tool, without in [(LANE, GPUREC), (PROFILER, "nothing")]:
            if (work, tool) in took and (work, without) in took:
                yield Sample(work, tool, FACTOR, took[work, tool] / took[work, without])


def figures():
    for work in WORKS:
        for tool in [GPUREC, *([LANE_ONLY] if work != "graphed" else [GRAPHS]), LANE]:
            target = TARGETS.get((work, tool), "")
            yield Figure(f"{work}: {tool} ÷ nothing", (work, tool, MS), over=(work, "nothing", MS), target=target)
        yield Figure(f"{work}: {PROFILER} ÷ nothing", (work, PROFILER, MS), over=(work, "nothing", MS))
        yield Figure(f"{work}: {PROFILER} ÷ {BESIDE}", (work, PROFILER, MS), over=(work, BESIDE, MS))
        yield Figure(f"{work}: {LANE} ÷ {GPUREC}", (work, LANE, MS), over=(work, GPUREC, MS))
        yield Figure(
            f"{work}: ({LANE} ÷ {GPUREC}) - ({PROFILER} ÷ nothing)",
            (work, LANE, FACTOR),
            less=(work, PROFILER, FACTOR),
            target=BEYOND.get(work, ""),
        )
    for tool in RECORDING:
        yield Figure(f"events lost, {tool}", ("all loops", tool, "lost"), target="<= 0")
