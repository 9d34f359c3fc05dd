"""What recording costs a program that uses a GPU. In: a machine with PyTorch and a GPU, a gpurec. Out: samples and
figures; (h).

One process does all the work, and gpurec comes and goes beside it (--pid): loop after loop meets the same GPU, the same
memory, the same kernels. torch.profiler has a process of its own, since CUPTI does not leave one that it was in.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from .frame import Failed, Figure, Sample, part
from .hooks import CPU, WALL, batches, samples
from .tools import Empty, Programs, Recorder, cpus, end_line, recorded

WORKS = ["launch", "inference", "training", "cnn"]
MINUTES = 8.2  # no round begins that would end later
MS = "ms a step"
CPUS = "GPUREC_BENCH_CPUS"
EMPTY = "empty program"  # on all the functions that gpurec hooks: what no recorder can go below
ONLY = "cuLaunch*"
EMPTY_ONLY = f"{EMPTY} on {ONLY}"
BEFORE = "gpurec before"  # another binary: --before
NO_BLOCKS = "gpurec --skip pytorch:*"  # PyTorch's blocks left out
STACKS = "gpurec --stacks"
PROFILER = "torch.profiler"
RECORDING = {
    "gpurec": [],
    BEFORE: [],
    NO_BLOCKS: ["--skip", "pytorch:*"],
    STACKS: ["--stacks"],
    "gpurec --kernel": ["--kernel"],
    f"gpurec --only {ONLY}": ["--only", ONLY],
    "gpurec --budget 2": ["--budget", "2"],
    "gpurec --budget 5": ["--budget", "5"],
}
TOOLS = ["nothing", EMPTY, EMPTY_ONLY, *RECORDING, PROFILER]
NOT_BY_ITSELF = ["gpurec --budget 2", NO_BLOCKS]  # only with --tools
TARGETS = {
    ("inference", "gpurec"): "<= 1.05",
    ("inference", STACKS): "<= 1.05",
    ("launch", "gpurec"): "<= 2.2",
    ("launch", f"gpurec --only {ONLY}"): "<= 1.2",
    ("launch", "gpurec --budget 5"): "<= 1.08",
}


@contextlib.contextmanager
def apart(bench):
    """Gives the programs CPUs of their own (gpu_work.py takes them). Everything else, gpurec too, runs on other CPUs:
    otherwise a loop takes up to 30 % longer whenever another thread runs on the same core. The programs have every
    second core of the first half. So no other thread shares a core with them, even where a virtual machine does not
    show which CPUs are threads of one core."""
    all_cpus, by_core = os.sched_getaffinity(0), {}
    for cpu in sorted(all_cpus):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        by_core.setdefault(siblings.read_text() if siblings.exists() else cpu, []).append(cpu)
    cores = list(by_core.values())
    half = len(cores) // 2
    if half < 4:
        bench.say(f"{len(cores)} cores: too few to give the programs some of their own")
        yield
        return
    own = [core[0] for core in cores[:half:2]]
    os.environ[CPUS] = ",".join(map(str, own))
    os.sched_setaffinity(0, {cpu for core in cores[half:] for cpu in core})
    bench.say(f"the programs run on the CPUs {os.environ[CPUS]}, all else on others")
    try:
        yield
    finally:
        del os.environ[CPUS]
        os.sched_setaffinity(0, all_cpus)


class Worker:
    """gpu_work.py in a process, launched by itself or by a recorder."""

    def __init__(self, bench, name, words, until, recorder=()):
        self.errors = bench.folder / f"{name}.txt"
        work = [*recorder, sys.executable, "-B", Path(__file__).with_name("gpu_work.py"), *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with open(self.errors, "w") as errors:
            self.process = bench.start(work, stderr=errors, text=True, **pipes)
        # What hangs must not hang the benchmark: its next answer is then the end of the file.
        self.alarm = threading.Timer(max(1, until + 60 - time.monotonic()), self.process.kill)
        self.alarm.daemon = True
        self.alarm.start()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            said = self.errors.read_text(errors="replace").strip()[-400:]
            raise Failed(f"PyTorch's work ended early with {sys.executable}, which has to have torch and a GPU: {said}")
        return json.loads(line)

    def ready(self):
        self.about = self.answer()
        return self.about

    def run(self, work, how="run"):
        """Milliseconds a step."""
        print(how, work, file=self.process.stdin, flush=True)
        return self.answer()["seconds"] * 1000 / self.about["steps"][work]

    def end(self):
        self.alarm.cancel()
        self.process.stdin.close()
        self.process.wait()


@part("gpu", "(h) on a GPU: PyTorch with nothing, with gpurec, with torch.profiler; 9 minutes, not without --gpu", 12)
def gpu(bench):
    until = time.monotonic() + MINUTES * 60
    wanted = list_of_tools(bench)
    # Before anything is measured: then they are there too if the rest ends early.
    yield from figures(wanted)
    tools = list(wanted)
    with_empty = any(tool.startswith(EMPTY) for tool in tools)
    programs = compiled(bench) if with_empty else None
    if not programs:
        tools = [tool for tool in tools if not tool.startswith(EMPTY)]
    if not bench.options.tools:
        yield from one_against_many(bench, programs)
    with apart(bench):
        workers = {tool: Worker(bench, *one, until) for tool, one in processes(tools).items()}
        for worker in workers.values():
            about = worker.ready()
            bench.say(f"{about['gpu']}, torch {about['torch']}, steps a loop {about['steps']}")
        yield from rounds(bench, programs, workers, tools, until)
        for worker in workers.values():
            worker.end()


def rounds(bench, programs, workers, tools, until):
    longest = 0
    for number in bench.each_round():
        start = time.monotonic()
        if start + longest > until:
            bench.say(f"the time is over after {number} rounds")
            return
        for tool in bench.in_turn(number, tools):
            try:
                if tool == PROFILER:
                    yield from profiler_round(workers[PROFILER])
                elif tool.startswith(EMPTY):
                    yield from empty_round(bench, programs, workers["nothing"], tool)
                else:
                    yield from gpurec_round(bench, workers["nothing"], tool)
            except Failed as failed:
                bench.missing(f"{tool}: {failed}")
                tools.remove(tool)
        longest = max(longest, time.monotonic() - start)
        bench.say(f"round {number + 1} took {time.monotonic() - start:.0f} s")


def processes(tools):
    """The processes that work, with names: one for torch.profiler alone, whose loops are shorter, since it works on its
    records for ten times as long; and one for all else."""
    wanted = {"nothing": ("plain", [1])} if any(tool != PROFILER for tool in tools) else {}
    return {**wanted, **({PROFILER: ("profiled", [0.5])} if PROFILER in tools else {})}


def list_of_tools(bench):
    """Those asked for, or all; those that the binaries and options do not allow are left out."""
    asked = bench.options.tools
    tools = asked or [tool for tool in TOOLS if tool not in NOT_BY_ITSELF]
    if not bench.options.before:
        if asked and BEFORE in asked:
            bench.missing(f"{BEFORE}: --before names no binary")
        tools = [tool for tool in tools if tool != BEFORE]
    said = subprocess.run([bench.gpurec, "--help"], capture_output=True, text=True).stdout
    for option in ["--budget", "--stacks"]:
        if not re.search(rf"^\s+(-\w, )?{option}\b", said, re.M):
            bench.say(f"this gpurec has no {option}: left out")
            tools = [tool for tool in tools if option not in tool]
    return tools


def compiled(bench):
    """The programs in C, if they can be had."""
    try:
        return Programs(bench)
    except Failed as failed:
        bench.missing(str(failed))
        return None


def loops(worker, tool):
    for work in WORKS:
        # Once for nothing: what is new costs more; new stacks too. A governor takes its time, and then tries now and
        # again what it has given up: what it costs shows over seconds.
        governed = "--budget" in tool and work == "launch"
        for _ in range(24 if governed else 2 if tool == STACKS else 1):
            worker.run(work)
        times = [worker.run(work) for _ in range(12 if governed else 1)]
        yield Sample(work, tool, MS, sum(times) / len(times))


def empty_round(bench, programs, worker, tool):
    hooks = Empty(bench, programs, worker.process.pid, [ONLY] if tool == EMPTY_ONLY else [])
    try:
        yield from loops(worker, tool)
    finally:
        hooks.finish()


def gpurec_round(bench, worker, tool):
    if tool == "nothing":
        yield from loops(worker, tool)
        return
    trace = bench.folder / "gpu.jsonl"
    options = ["-q", *RECORDING[tool], "-o", trace, "--pid", str(worker.process.pid)]
    binary = bench.options.before if tool == BEFORE else bench.gpurec
    recorder = Recorder(bench, options, binary=binary, stdin=subprocess.DEVNULL)
    try:
        until_attached(recorder, trace)
        for one in loops(worker, tool):
            yield one
        recorder.process.send_signal(signal.SIGINT)
        recorder.finish()
    finally:
        if recorder.process.poll() is None:
            recorder.process.terminate()
            recorder.process.wait()
    end = end_line(trace)
    yield Sample("all loops", tool, "events", end["events"])
    yield Sample("all loops", tool, "lost", end["lost"])
    if tool == "gpurec":
        yield from calls_a_launch(trace)
    trace.unlink()


def until_attached(recorder, trace):
    limit = time.monotonic() + 30
    while True:
        if trace.exists():
            with open(trace) as lines:
                if re.search(r'"attached":[1-9]', lines.readline()):
                    return
        if recorder.process.poll() is not None or time.monotonic() > limit:
            raise Failed(f"gpurec attached to nothing of PyTorch's: {recorder.errors.read_text().strip()[-300:]}")
        time.sleep(0.05)


def calls_a_launch(trace):
    """In the first loop, which is of tiny launches: of the trace's first thousands."""
    calls = launches = 0
    with open(trace) as lines:
        for line in lines:
            if '"phase":"B"' not in line:
                continue
            calls += 1
            launches += '"name":"cuLaunchKernel' in line
            if launches == 2000:
                break
    if launches:
        yield Sample("launch", "gpurec", "API calls a launch", calls / launches)


def profiler_round(worker):
    for work in WORKS:
        worker.run(work)
        yield Sample(work, "nothing, beside torch.profiler", MS, worker.run(work))
        yield Sample(work, PROFILER, MS, worker.run(work, "profile"))


def one_against_many(bench, programs):
    """A hit's cost with 14 threads at it, on the stand-in library."""
    if cpus() < 16:
        bench.say(f"{cpus()} CPUs: 14 threads against one need 16, left out")
    if cpus() < 16 or not programs:
        return
    for _ in range(5):
        trace = bench.folder / "hits.jsonl"
        printed, _ = recorded(bench, ["-q", "-o", trace], batches(programs, ["push"]))
        yield Sample("push", "gpurec", "lost", end_line(trace)["lost"])
        trace.unlink()
        yield from samples("gpurec", printed, ["push"])
    for what, target in [(WALL, "<= 1.4"), (CPU, "")]:
        many, one = ("push, 14 threads", "gpurec", what), ("push, 1 thread", "gpurec", what)
        yield Figure(f"a hit, 14 threads ÷ 1 ({what})", many, over=one, target=target)


def figures(tools):
    for work in WORKS:
        for tool in tools:
            beside = "nothing, beside torch.profiler" if tool == PROFILER else "nothing"
            if tool != "nothing":
                target = TARGETS.get((work, tool), "")
                yield Figure(f"{work}: {tool} ÷ nothing", (work, tool, MS), over=(work, beside, MS), target=target)
        for recording, floor in [("gpurec", EMPTY), (f"gpurec --only {ONLY}", EMPTY_ONLY)]:
            if {recording, floor} <= set(tools):
                yield Figure(f"{work}: {recording} ÷ {floor}", (work, recording, MS), over=(work, floor, MS))
        for one, other, target in [
            ("gpurec", BEFORE, "<= 1.03"),
            (NO_BLOCKS, BEFORE, ""),
            (STACKS, "gpurec", "<= 1.5"),
        ]:
            if {one, other} <= set(tools):
                target = "" if (one, work) == (STACKS, "inference") else target
                yield Figure(f"{work}: {one} ÷ {other}", (work, one, MS), over=(work, other, MS), target=target)
    if "gpurec" in tools:
        yield Figure("launch: API calls a launch", ("launch", "gpurec", "API calls a launch"))
    for tool in ["gpurec", STACKS]:
        if tool in tools:
            yield Figure(f"events lost, {tool}", ("all loops", tool, "lost"), target="<= 0")
