"""What a record of GPU work costs with --gpu, in the recorded process and in gpurec, and how many a second are recorded
without loss. In: fixtures/programs/bench/cupti.c, which delivers records as CUPTI does, and lane.c. Out: samples and
figures; (k) of the benchmark. What CUPTI and the GPU themselves cost is measured on a GPU only.
"""

import json
import shutil
import subprocess

from .frame import Failed, Figure, Sample, part
from .tools import SOURCES, Recorder

SECONDS = 5
RATES = [100_000, 1_000_000]
TARGET, RECORDER, LOST = "ns a record in the process", "CPU ns a record in gpurec", "records lost"
READER, WRITER = "of which the reader", "of which the writer of the file"
TOOL, BEFORE = "gpurec --gpu", "before"
MEMORY = "MB beside its rings"


def compiled(bench):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Failed("there is no C compiler here (apt-get install gcc libc6-dev)")
    library, program = bench.folder / "libcupti.so.13", bench.folder / "lane"
    for words in [
        ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcupti.so.13", SOURCES / "cupti.c", "-o", library],
        ["-O2", SOURCES / "lane.c", "-o", program, library, f"-Wl,-rpath,{bench.folder}", "-ldl"],
    ]:
        done = subprocess.run([compiler, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{words[-1]} does not compile: {done.stderr.strip()[-500:]}")
    return program


def account(trace):
    """The `end` line's account of GPU work."""
    with open(trace, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - (1 << 20)))
        return json.loads(file.read().splitlines()[-1])["gpu"]


@part("gpu-lane", "(k) --gpu: the cost of a record, and a million a second; half a minute", 3)
def gpu_lane(bench):
    program = compiled(bench)
    trace = bench.folder / "lane.jsonl"
    binaries = {TOOL: bench.gpurec} | ({BEFORE: bench.options.before} if bench.options.before else {})
    for number in bench.each_round():
        for rate in RATES:
            case, pairs = f"{rate:_} records a second", rate * SECONDS // 2
            for tool in bench.in_turn(number, list(binaries)):
                words = ["-q", "--gpu", "-o", trace]
                recorder = Recorder(bench, words, [program, pairs, rate], binary=binaries[tool])
                took = float(recorder.finish().split()[0])
                counts = account(trace)
                trace.unlink()
                yield Sample(case, tool, TARGET, took)
                yield Sample(case, tool, RECORDER, 1e9 * recorder.cpu_s / (2 * pairs))
                for what, thread in [(READER, "gpurec-work"), (WRITER, "gpurec-write")]:
                    seconds = sum(s for (_, name), s in recorder.threads_s.items() if name == thread)
                    yield Sample(case, tool, what, 1e9 * seconds / (2 * pairs))
                yield Sample(case, tool, LOST, pairs - counts["delivered"])
                yield Sample(case, tool, MEMORY, recorder.peak_beside_kb / 1000)
    for rate in RATES:
        case = f"{rate:_} records a second"
        yield Figure(f"records lost, {case}", (case, TOOL, LOST), target="<= 0")
        yield Figure(f"in the process, {case}", (case, TOOL, TARGET))
        if len(binaries) > 1:
            for what in [RECORDER, READER]:
                yield Figure(f"{what}, ÷ before, {case}", (case, TOOL, what), over=(case, BEFORE, what))
