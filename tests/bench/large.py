"""A trace of 100 million events (--events), made and read back by the commands that read traces. In: a program that
calls without a pause, a library with nothing behind it. Out: samples: seconds, bytes, and the most memory each held; the
calls that a reader counts are those that were made, or it is no figure. Takes 4 GB of disk, and half an hour.
"""

import json
import os
import subprocess

from .frame import ROOT, Failed, Figure, Sample, part
from .reading import run

SOURCE = ROOT / "fixtures/programs/long.c"
FUNCTION = "cuDriverGetVersion"
CASE = "one large trace"


@part("large", "a trace of 100 million events (--events), made and read; half an hour, 4 GB of disk", 1)
def large(bench):
    calls = bench.options.events // 2
    program, library = bench.folder / "long", bench.folder / "libcuda.so.1"
    compile_c(["-pthread", "-o", program, SOURCE, "-ldl"])
    compile_c(["-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, SOURCE])
    trace = bench.folder / "large.jsonl.zst"
    for _ in bench.each_round():
        bench.say(f"recording {2 * calls} events")
        record = [bench.gpurec, "-q", "--lossless", "-o", trace, "--", program, "calls", library, calls]
        yield from samples(bench, "record", record)
        yield Sample(CASE, "record", "MB", trace.stat().st_size / 1e6)
        yield from reads(bench, trace, calls)
        trace.unlink()
    for tool in ["summary", "export perfetto"]:
        yield Figure(f"{tool}, peak MB", (CASE, tool, "peak MB"), target="<= 100")
    yield Figure("export html, MB of the page", (CASE, "export html", "MB"), target="<= 50")


def reads(bench, trace, calls):
    summary = bench.folder / "summary.json"
    yield from samples(bench, "summary", [bench.gpurec, "summary", "--json", trace], summary)
    told(json.loads(summary.read_text()), calls)
    budgets = [f"{FUNCTION}.calls=={calls}", "lost==0", "complete==1"]
    check = [word for budget in budgets for word in ("--budget", budget)]
    yield from samples(bench, "check", [bench.gpurec, "check", *check, trace])
    yield from samples(bench, "timeline", [bench.gpurec, "timeline", trace])
    yield from samples(bench, "report api", [bench.gpurec, "report", "api", trace])
    rows = bench.folder / "rows"
    count = f"wc -l > {rows}"
    yield from samples(bench, "export csv", [bench.gpurec, "export", "--format", "csv", "-o", "-", trace], pipe=count)
    if int(rows.read_text()) < calls:
        raise Failed(f"the table has {rows.read_text().strip()} rows for {calls} calls")
    yield from samples(
        bench, "export perfetto", [bench.gpurec, "export", "--format", "perfetto", "-o", "-", trace], pipe="cat > /dev/null"
    )
    page = bench.folder / "page.html"
    yield from samples(bench, "export html", [bench.gpurec, "export", "--format", "html", "-o", page, trace])
    yield Sample(CASE, "export html", "MB", page.stat().st_size / 1e6)
    page.unlink()


def told(figures, calls):
    """All that were made, once each."""
    made = {one["name"]: one["calls"] for one in figures["functions"]}
    if made.get(FUNCTION) != calls or figures["lost"] or not figures["complete"] or figures.get("notes"):
        raise Failed(f"{calls} calls were made; the trace has {made}, complete {figures['complete']}: {figures.get('notes')}")


def samples(bench, tool, command, into=os.devnull, pipe=None):
    bench.say(tool)
    with open(into, "wb") as out:
        taker = subprocess.Popen(["sh", "-c", pipe], stdin=subprocess.PIPE) if pipe else None
        try:
            cpu, wall, peak = run(command, bench.start, 0.05, stdout=taker.stdin if taker else out)
        finally:
            if taker:
                taker.communicate()
    yield Sample(CASE, tool, "s by the clock", wall)
    yield Sample(CASE, tool, "s of CPU", cpu)
    yield Sample(CASE, tool, "peak MB", peak / 1000)


def compile_c(words):
    done = subprocess.run(["cc", "-O2", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{SOURCE} does not compile: {done.stderr.strip()[-500:]}")
