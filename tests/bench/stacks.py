"""What --stacks costs a call, beside py-spy and bpftrace, and what many distinct stacks take. In:
fixtures/programs/bench/deep.py. Out: samples and figures; (j) of the benchmark.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time

from .frame import Failed, Figure, Sample, part
from .hooks import CPU, WALL, output_of
from .tools import FUNCTION, SOURCES, Bpftrace, Programs, recorded

CALLS, DEPTH = 200_000, 20
DISTINCT = [10_000, 1_000_000]
RECORDED = {
    "gpurec": [],
    "gpurec --stacks, Python frames only": ["--stacks=all", "--no-native"],
    "gpurec --stacks": ["--stacks=all"],
}
PLAIN, PYTHON, NATIVE = RECORDED
PY_SPY, BPFTRACE = "py-spy, 1 kHz", "bpftrace, ustack"


def program(programs, *words):
    return [sys.executable, SOURCES / "deep.py", programs.libraries["push"], FUNCTION, *map(str, words)]


def loop(programs):
    return program(programs, "loop", CALLS, DEPTH)


def with_gpurec(options):
    def run(bench, programs):
        return recorded(bench, ["-q", "--summary-only", *options], loop(programs))[0]

    return run


def py_spy(bench):
    """PyPI's py-spy, unpacked into the build folder."""
    folder = bench.built / "py-spy"
    path = folder / "bin/py-spy"
    if not path.exists():
        bench.say("fetching py-spy")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, "py-spy"]
        done = subprocess.run(list(map(str, pip)), capture_output=True, text=True)
        if done.returncode or not path.exists():
            raise Failed(f"py-spy could not be fetched from PyPI: {done.stderr.strip()[-300:]}")

    def run(bench, programs):
        options = ["record", "-r", "1000", "-f", "raw", "-o", bench.folder / "py-spy.txt", "--"]
        printed = output_of([path, *options, *loop(programs)])
        return next(line for line in printed.splitlines() if re.fullmatch(r"[\d.]+ [\d.]+", line))

    return run


def ustack(bench):
    bpftrace = Bpftrace(bench)

    def run(bench, programs):
        library = programs.libraries["push"].relative_to(bench.folder)
        script = f"uprobe:/bench/{library}:{FUNCTION} {{ @[ustack(20)] = count(); }}"
        with open(bench.folder / "ustack.txt", "w") as out:
            tracer = bench.start(bpftrace.command(["-e", script]), stdout=out, stderr=subprocess.STDOUT)
        limit = time.monotonic() + 30
        while "Attach" not in (bench.folder / "ustack.txt").read_text():
            if tracer.poll() is not None or time.monotonic() > limit:
                raise Failed(f"bpftrace does not attach: {(bench.folder / 'ustack.txt').read_text()[-300:]}")
            time.sleep(0.05)
        time.sleep(0.5)
        printed = output_of(loop(programs))
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        return printed

    return run


@part("stacks", "(j) --stacks: a Python program 20 functions deep, many distinct stacks; 2 minutes", 7)
def stacks(bench):
    programs = Programs(bench)
    tools = {"nothing": lambda _, programs: output_of(loop(programs))}
    tools.update({name: with_gpurec(options) for name, options in RECORDED.items()})
    for name, make in {PY_SPY: py_spy, BPFTRACE: ustack}.items():
        try:
            tools[name] = make(bench)
        except Failed as failed:
            bench.missing(f"{name}: {failed}")
    for number in bench.each_round():
        for name in bench.in_turn(number, list(tools)):
            try:
                cpu, wall = tools[name](bench, programs).split()
            except Failed as failed:
                bench.missing(f"{name}: {failed}")
                tools.pop(name)
                continue
            yield Sample("loop", name, CPU, float(cpu))
            yield Sample("loop", name, WALL, float(wall))
    yield from figures()
    for count in DISTINCT:
        yield from many(bench, programs, count)


def figures():
    base = ("loop", PLAIN, CPU)
    yield Figure("with Python frames ÷ without", ("loop", PYTHON, CPU), over=base, target="<= 1.5")
    yield Figure("with native frames too ÷ without", ("loop", NATIVE, CPU), over=base, target="<= 2")
    for name in [PY_SPY, BPFTRACE]:
        yield Figure(f"{name} ÷ nothing, by the clock", ("loop", name, WALL), over=("loop", "nothing", WALL))
    yield Figure("gpurec --stacks ÷ nothing, by the clock", ("loop", NATIVE, WALL), over=("loop", "nothing", WALL))


def many(bench, programs, count):
    """Lossless: the recorder needs longer for a new stack than the program."""
    trace, case = bench.folder / "distinct.jsonl.zst", f"{count:_} distinct stacks"
    options = ["-q", "--lossless", "--stacks=all", "-o", trace]
    printed, recorder = recorded(bench, options, program(programs, "distinct", count))
    found, without = in_trace(trace)
    trace.unlink()
    yield Sample(case, NATIVE, "stacks in the trace", found)
    yield Sample(case, NATIVE, "calls without a stack", without)
    yield Sample(case, NATIVE, "MB beside its rings", recorder.peak_beside_kb / 1000)
    yield Sample(case, NATIVE, "CPU s of gpurec", recorder.cpu_s)
    yield Sample(case, NATIVE, WALL, float(printed.split()[1]))
    yield Figure(f"MB beside its rings, {case}", (case, NATIVE, "MB beside its rings"))


def in_trace(trace):
    """How many stacks it has, and how many calls without one."""
    zstd = shutil.which("zstd")
    if not zstd:
        raise Failed("there is no zstd here (apt-get install zstd)")
    found = without = 0
    with subprocess.Popen([zstd, "-dcq", trace], stdout=subprocess.PIPE) as lines:
        for line in lines.stdout:
            if b'"type":"stack"' in line[:80]:
                found += 1
            elif b'"phase":"B"' in line and b'"stack":' not in line:
                without += 1
            elif b'"type":"end"' in line[:200] and not json.loads(line)["complete"]:
                raise Failed(f"recording was not complete: {json.loads(line)['incomplete_because']}")
    return found, without
