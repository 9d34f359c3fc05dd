"""How fast the pipeline turns records into lines, with 1 to 8 threads: `gpurec replay` makes full rings of eight ranks and
empties them into a file. In: the binary alone, on any machine. Out: samples and figures of the part sustained.
"""

import re
import subprocess

from .frame import Failed, Figure, Sample
from .tools import cpus

THREADS = [1, 2, 4, 6, 8]
# What they are compared with one thread for, in threads: at least so many times its lines a second.
TARGETS = {2: ">= 1.6", 6: ">= 4"}
WORK = {"one": "one function", "training": "PyTorch's calls"}
CALLS = 2_000_000
LINES, CPU, PEAK = "M lines a second", "CPU ns a line", "peak MiB besides the rings"
PRINTED = re.compile(r"(\d+) lines .* ([\d.]+) M lines/s, CPU ([\d.]+) s, at most (\d+) MiB")


def counts():
    """A count beyond the CPUs says nothing, but for two."""
    return [threads for threads in THREADS if threads <= max(2, cpus())]


def samples(bench, number):
    cases = [(work, threads) for work in WORK for threads in counts()]
    for work, threads in bench.in_turn(number, cases):
        trace = bench.folder / "replay.jsonl"
        command = [bench.gpurec, "replay", "--work", work, "--threads", threads, "--calls", CALLS, "-o", trace]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        trace.unlink(missing_ok=True)
        found = PRINTED.search(done.stdout)
        if done.returncode or not found:
            raise Failed(f"gpurec replay ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
        lines, speed, cpu, peak = found.groups()
        case, tool = f"replay, {WORK[work]}", f"{threads} threads"
        yield Sample(case, tool, LINES, float(speed))
        yield Sample(case, tool, CPU, float(cpu) / int(lines) * 1e9)
        yield Sample(case, tool, PEAK, float(peak))


def figures():
    for work in WORK.values():
        case = f"replay, {work}"
        one = (case, "1 threads", LINES)
        yield Figure(f"M lines a second, 1 thread, {work}", one)
        for threads in counts()[1:]:
            of = (case, f"{threads} threads", LINES)
            yield Figure(f"{threads} threads ÷ 1, {work}", of, over=one, target=TARGETS.get(threads, ""))
