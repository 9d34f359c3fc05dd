"""What recording costs a program that uses a GPU. In: a machine with PyTorch and a GPU, a gpurec. Out: samples and
figures; (h).

One process does all the work, and gpurec comes and goes beside it (--pid): loop after loop meets the same GPU, the same
memory, the same kernels. torch.profiler has a process of its own, since CUPTI does not leave one that it was in.
"""

import json
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

WORKS = ["launch", "inference", "training"]
MINUTES = 6.5  # no round begins that would end later
MS = "ms a step"
EMPTY = "empty program"  # on all the functions that gpurec hooks: what no recorder can go below
ONLY = "cuLaunch*"
EMPTY_ONLY = f"{EMPTY} on {ONLY}"
RECORDING = {
    "gpurec": [],
    "gpurec --kernel": ["--kernel"],
    f"gpurec --only {ONLY}": ["--only", ONLY],
    "gpurec --budget 5": ["--budget", "5"],
}
TARGETS = {
    ("inference", "gpurec"): "<= 1.05",
    ("launch", "gpurec"): "<= 2.2",
    ("launch", f"gpurec --only {ONLY}"): "<= 1.2",
    ("launch", "gpurec --budget 5"): "<= 1.08",
}


class Worker:
    """gpu_work.py in a process."""

    def __init__(self, bench, name, until):
        self.errors = bench.folder / f"{name}.txt"
        work = [sys.executable, "-B", Path(__file__).with_name("gpu_work.py")]
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


@part("gpu", "(h) on a GPU: PyTorch with nothing, with gpurec, with torch.profiler; 7 minutes, not without --gpu", 12)
def gpu(bench):
    began = time.monotonic()
    until = began + MINUTES * 60
    wanted = list_of_tools(bench)
    tools = list(wanted)
    plain, profiled = Worker(bench, "plain", until), Worker(bench, "profiled", until)
    for worker in [plain, profiled]:
        about = worker.ready()
        bench.say(f"{about['gpu']}, torch {about['torch']}, steps a loop {about['steps']}")
    programs = compiled(bench)
    if not programs:
        tools = [tool for tool in tools if not tool.startswith(EMPTY)]
    yield from one_against_many(bench, programs)
    longest = 0
    for number in bench.each_round():
        start = time.monotonic()
        if start + longest > until:
            bench.say(f"the time is over after {number} rounds")
            break
        for tool in bench.in_turn(number, tools):
            if tool == "torch.profiler":
                yield from profiler_round(bench, profiled)
            else:
                try:
                    if tool.startswith(EMPTY):
                        yield from empty_round(bench, programs, plain, tool)
                    else:
                        yield from gpurec_round(bench, plain, tool)
                except Failed as failed:
                    bench.missing(f"{tool}: {failed}")
                    tools.remove(tool)
        longest = max(longest, time.monotonic() - start)
    plain.end()
    profiled.end()
    yield from figures(wanted)


def list_of_tools(bench):
    tools = ["nothing", EMPTY, EMPTY_ONLY, *RECORDING, "torch.profiler"]
    said = subprocess.run([bench.gpurec, "--help"], capture_output=True, text=True).stdout
    if not re.search(r"^\s+(-\w, )?--budget\b", said, re.M):
        bench.say("this gpurec has no --budget: left out")
        tools.remove("gpurec --budget 5")
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
        # Once for nothing: what is new costs more. A governor takes its time, and then tries now and again what it
        # has given up: what it costs shows over seconds.
        governed = "--budget" in tool and work == "launch"
        for _ in range(12 if governed else 1):
            worker.run(work)
        times = [worker.run(work) for _ in range(8 if governed else 1)]
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
    recorder = Recorder(bench, options, stdin=subprocess.DEVNULL)
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


def profiler_round(bench, worker):
    for work in WORKS:
        worker.run(work)
        yield Sample(work, "nothing, beside torch.profiler", MS, worker.run(work))
        yield Sample(work, "torch.profiler", MS, worker.run(work, "profile"))


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
            beside = "nothing, beside torch.profiler" if tool == "torch.profiler" else "nothing"
            if tool != "nothing":
                target = TARGETS.get((work, tool), "")
                yield Figure(f"{work}: {tool} ÷ nothing", (work, tool, MS), over=(work, beside, MS), target=target)
        for recording, floor in [("gpurec", EMPTY), (f"gpurec --only {ONLY}", EMPTY_ONLY)]:
            yield Figure(f"{work}: {recording} ÷ {floor}", (work, recording, MS), over=(work, floor, MS))
    yield Figure("launch: API calls a launch", ("launch", "gpurec", "API calls a launch"))
    yield Figure("events lost, everything recorded", ("all loops", "gpurec", "lost"), target="<= 0")
