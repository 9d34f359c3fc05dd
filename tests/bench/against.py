"""An older gpurec against this one. In: both binaries (--against OLD). Out: samples of each, and figures, which are
ratios new ÷ old of one pair each: lower is better everywhere.

A case prepares what both are measured with and returns what measures bench.gpurec once. The binaries take turns, pair by
pair, each time the other one first.
"""

import os
import subprocess
import sys
import time

from . import hooks
from .coming import nvidia_libraries
from .frame import ROOT, Failed, Figure, Part, Sample
from .hooks import CPU, batches, burst, cores, drained, output_of
from .reading import MB, repeat, run
from .tools import Programs, Recorder, recorded

CASES = {}
PAIRS = 12  # the least that leaves two on each side of the interval out
BURST = 1_000_000
TOOLS = ["old", "new"]


def case(name, text):
    def add(prepare):
        CASES[name] = Part(lambda bench: in_pairs(bench, prepare(bench)), text, PAIRS)
        return prepare

    return add


def in_pairs(bench, measure):
    binaries, seen = {"old": os.path.abspath(bench.options.against), "new": bench.gpurec}, {}
    try:
        for number in bench.each_round():
            for tool in bench.in_turn(number, TOOLS):
                bench.gpurec = binaries[tool]
                for what, unit, value in measure():
                    seen[what, unit] = None
                    yield Sample(what, tool, unit, value)
    finally:
        bench.gpurec = binaries["new"]
    for what, unit in seen:
        yield Figure(f"{what}, {unit}", (what, "new", unit), over=(what, "old", unit))


@case("hooks", "a recorded call, by the kind of its hook")
def of_hooks(bench):
    programs = Programs(bench)

    def measure():
        for one in hooks.samples("", hooks.gpurec(bench, programs)):
            if one.what == CPU and one.case.endswith(", 1 thread"):
                yield one.case, one.what, one.value

    return measure


@case("burst", "a call among a million without a pause")
def of_bursts(bench):
    programs = Programs(bench)
    trace = bench.folder / "burst.jsonl"

    def measure():
        printed, recorder = recorded(bench, ["-q", "-o", trace], burst(programs, BURST))
        trace.unlink()
        yield "a million calls", "ns a call", int(printed.split()[1]) / BURST
        yield "a million calls", "CPU s of gpurec", recorder.cpu_s

    return measure


@case("sustained", "an event from ring to file, on one core")
def of_writing(bench):
    programs, (calls, ours, theirs) = Programs(bench), cores()

    def measure():
        cpu, _, events = drained(bench, programs, calls, ours, theirs)
        yield "ring to file", "CPU ns an event", cpu / events * 1e9

    return measure


@case("read", "summary of a trace (--size)")
def of_reading(bench):
    trace = bench.folder / "read.jsonl"
    repeat(ROOT / "traces/context_h200.jsonl.zst", trace, bench.options.size * MB)

    def measure():
        cpu, _, _ = run([bench.gpurec, "summary", trace])
        yield f"summary of {bench.options.size} MB", "CPU s", cpu

    return measure


@case("start", "from start until the command runs, and until all is over")
def of_starting(bench):
    trace = bench.folder / "start.jsonl"

    def measure():
        # The kernel still has the last recording's hooks and memory for a while.
        time.sleep(0.5)
        began = time.time_ns()
        ran = int(output_of([bench.gpurec, "-q", "-o", trace, "--", "date", "+%s%N"]))
        ended = time.time_ns()
        trace.unlink()
        yield "until the command runs", "ms", (ran - began) / 1e6
        yield "from start to end", "ms", (ended - began) / 1e6

    return measure


LOADED = "import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]; print('ready', flush=True); sys.stdin.read()"


@case("attach", "--pid, until all of libcuda and libcudart is recorded")
def of_attaching(bench):
    libraries = nvidia_libraries(bench)
    trace = bench.folder / "attach.jsonl"

    def measure():
        pipes = dict.fromkeys(["stdin", "stdout"], subprocess.PIPE)
        target = bench.start([sys.executable, "-c", LOADED, *libraries], text=True, **pipes)
        if target.stdout.readline().strip() != "ready":
            raise Failed("NVIDIA's libraries cannot be opened")
        time.sleep(0.5)
        began = time.monotonic()
        recorder = Recorder(bench, ["-q", "-o", trace, "--pid", target.pid])
        while not (trace.exists() and trace.stat().st_size) and recorder.process.poll() is None:
            time.sleep(0.001)
        took = time.monotonic() - began
        target.communicate()
        recorder.finish()
        trace.unlink()
        yield "until it records", "ms", took * 1000

    return measure
