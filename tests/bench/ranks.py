"""Reading a job: `gpurec ranks` over 8, 64 and 512 traces of as many bytes in all. In: traces that make-job makes
(crates/analysis/examples). Out: samples and figures. MB/s are bytes of JSONL by user and system time, on one core; the
ceiling is `gpurec summary` of one of the traces.
"""

import os
import subprocess

from .frame import ROOT, Failed, Figure, Sample, part
from .reading import MB, SPEED, samples
from .reading import run as measured

COUNTS = [8, 64, 512]
STEP = 40  # lines of a rank in a step, about


@part("ranks", "reading a job (--size): 8, 64 and 512 traces; three minutes and the time to build make-job", 3)
def ranks(bench):
    make_job = built(bench)
    jobs = {count: job(bench, make_job, count) for count in COUNTS}
    for _ in bench.each_round():
        for count, traces in jobs.items():
            yield from of_job(f"{count} traces", "ranks", traces, [bench.gpurec, "ranks", *traces])
        first = jobs[COUNTS[0]][0]
        yield from samples("one trace", "summary", first, [bench.gpurec, "summary", first])
    for count in COUNTS:
        case = f"{count} traces"
        yield Figure(f"ranks, MB/s a core, {case}", (case, "ranks", SPEED), target=">= 400" if count == 64 else "")
        yield Figure(f"ranks, peak MB, {case}", (case, "ranks", "peak MB"), target="<= 300" if count == 64 else "")


def built(bench):
    bench.say("building make-job")
    command = ["cargo", "build", "--release", "--locked", "-q", "-p", "gpurec-analysis", "--example", "make-job"]
    subprocess.run(command, cwd=ROOT, check=True)
    path = bench.built.parent / "release/examples/make-job"
    if not path.exists():
        raise Failed(f"{path} was not built")
    return path


def job(bench, make_job, count):
    """A job of that many ranks, about --size in all."""
    folder = bench.folder / str(count)
    a_step = 220 * STEP * count
    steps = max(20, bench.options.size * MB // a_step)
    bench.say(f"making {count} traces")
    command = [make_job, folder, "--plain", "--ranks", count, "--steps", steps, "--skew-ms", 50, "--drift-ppm", 100]
    subprocess.run([str(word) for word in command], check=True)
    return sorted(folder.glob("*.jsonl"))


def of_job(case, tool, traces, command):
    cpu, wall, peak = measured(command)
    size = sum(os.path.getsize(trace) for trace in traces) / MB
    yield Sample(case, tool, SPEED, size / cpu)
    yield Sample(case, tool, "s by the clock", wall)
    yield Sample(case, tool, "peak MB", peak / 1000)
