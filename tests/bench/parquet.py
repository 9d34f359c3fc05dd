"""Writing Parquet: calls a second and size. In: traces of the demo and of an H200 made longer (--size). Out: samples
and figures. A call is a row of the table calls; its time is user and system time, on one core.
"""

import re
import subprocess

from .frame import ROOT, Figure, Sample, part
from .reading import demo_trace, repeat, run

MB = 10**6
CALLS = "calls/s of CPU"
SMALLER = "times smaller"


@part("parquet", "writing Parquet (--size): calls a second, and the size against the JSONL", 3)
def parquet(bench):
    gpurec, folder, size = bench.gpurec, bench.folder, bench.options.size * MB
    traces = {"user": demo_trace(bench, gpurec, folder / "user.jsonl", size), "kernel": folder / "kernel.jsonl"}
    repeat(ROOT / "traces/context_h200.jsonl.zst", traces["kernel"], size)
    calls = {name: lines_with(trace, '"phase":"B"') for name, trace in traces.items()}
    for at in bench.each_round():
        for name, trace in traces.items():
            dataset = folder / f"{name}_{at}"
            cpu, wall, peak = run([gpurec, "export", "--format", "parquet", "-o", dataset, trace])
            written = sum(path.stat().st_size for path in dataset.rglob("*.parquet"))
            yield Sample(name, "export parquet", CALLS, calls[name] / cpu)
            yield Sample(name, "export parquet", "s by the clock", wall)
            yield Sample(name, "export parquet", "peak MB", peak / 1000)
            yield Sample(name, "export parquet", SMALLER, trace.stat().st_size / written)
            yield Sample(name, "export parquet", "bytes a call", written / calls[name])
    for name in traces:
        yield Figure(f"calls/s, {name}", (name, "export parquet", CALLS), target=">= 1_000_000")
        yield Figure(f"JSONL ÷ Parquet, {name}", (name, "export parquet", SMALLER), target=">= 15")


def lines_with(trace, text):
    done = subprocess.run(["grep", "-c", "-F", text, trace], stdout=subprocess.PIPE, check=True, text=True)
    return int(re.match(r"\d+", done.stdout)[0])
