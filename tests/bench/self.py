"""What gpurec itself takes: memory and CPU while it records, bytes on disk. In: callers at a rate, bursts, the demo.
Out: samples and figures; (f) and (g).
"""

import shutil
import subprocess

from .frame import Failed, Figure, Sample, part
from .hooks import BURST, burst
from .tools import FUNCTION, Programs, end_line, recorded

SECONDS = 4
RATE = 100_000  # events a second: half as many calls


@part("own", "(f) gpurec's memory and CPU at 100,000 events a second, and in a burst; half a minute", 5)
def own(bench):
    programs = Programs(bench)
    at_rate = [programs.hits, "rate", FUNCTION, str(RATE // 2), str(SECONDS), programs.libraries["push"]]
    cases = {"100_000 events/s": at_rate, "3 M calls": burst(programs, BURST)}
    trace = bench.folder / "own.jsonl"
    for _ in bench.each_round():
        for case, command in cases.items():
            printed, recorder = recorded(bench, ["-q", "-o", trace], command)
            end = end_line(trace)
            trace.unlink()
            yield Sample(case, "gpurec", "MB beside its rings", recorder.peak_beside_kb / 1000)
            yield Sample(case, "gpurec", "MB resident, its rings too", recorder.peak_kb / 1000)
            yield Sample(case, "gpurec", "CPU s", recorder.cpu_s)
            if command is at_rate:
                took = int(printed.split()[1]) / 1e9
                yield Sample(case, "gpurec", "% of a CPU, its start too", 100 * recorder.cpu_s / took)
                yield Sample(case, "gpurec", "lost", end["lost"])
    for case in cases:
        yield Figure(f"MB beside its rings, {case}", (case, "gpurec", "MB beside its rings"), target="<= 64")
    case = "100_000 events/s"
    yield Figure(f"% of a CPU, {case}", (case, "gpurec", "% of a CPU, its start too"))


@part("size", "(g) bytes an event on disk, plain and .zst; ten seconds", 3)
def size(bench):
    for _ in bench.each_round():
        for ending in ["jsonl", "jsonl.zst"]:
            trace = bench.folder / f"demo.{ending}"
            recorded(bench, ["demo", "-q", "-o", trace], ["--loops", "5"])
            yield Sample("demo", ending, "bytes an event", trace.stat().st_size / events_of(trace))
            trace.unlink()
    for ending in ["jsonl", "jsonl.zst"]:
        yield Figure(f"bytes an event, {ending}", ("demo", ending, "bytes an event"))


def events_of(trace):
    if trace.suffix != ".zst":
        return end_line(trace)["events"] + 1
    if not shutil.which("zstd"):
        raise Failed("zstd is needed to read a .zst trace (apt-get install zstd)")
    unpacked = trace.with_suffix(".unpacked")
    subprocess.run(["zstd", "-dqf", trace, "-o", unpacked], check=True)
    events = end_line(unpacked)["events"] + 1
    unpacked.unlink()
    return events
