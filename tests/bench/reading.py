"""Reading a trace: summary and export against jq. In: a recording of the demo, and one of an H200 made longer. Out:
samples and figures. MB/s are from user and system time, on one core.
"""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from .frame import ROOT, Failed, Figure, Sample, part

MB = 10**6

# What a person would ask jq for who has no `gpurec summary`: calls, time, longest and failed by function, bytes
# allocated, bytes copied by direction. It is less than the summary has.
JQ = """
reduce inputs as $e ({};
  if $e.phase == "E" then
    .functions[$e.name] |= {calls: (.calls + 1), us: (.us + $e.duration_us), max: ([.max, $e.duration_us] | max),
                            failed: (.failed + (if $e.error then 1 else 0 end))}
  elif $e.type == "memory" and $e.op == "alloc" then .allocated += $e.size
  elif $e.type == "transfer" then .copied[$e.direction] += $e.size
  else . end)
"""

# jq's time grows with the length of its input alone, and a gigabyte takes it a minute.
JQ_PART = 10
SPEED = "MB/s of CPU"


@part("read", "reading a trace (--size): summary and export against jq; two minutes", 3)
def read(bench):
    gpurec, folder, size = bench.gpurec, bench.folder, bench.options.size * MB
    traces = {"user": demo_trace(bench, gpurec, folder / "user.jsonl", size), "kernel": folder / "kernel.jsonl"}
    repeat(ROOT / "traces/context_h200.jsonl.zst", traces["kernel"], size)
    for name, trace in traces.items():
        shorten(trace, folder / f"{name}_part.jsonl", trace.stat().st_size // JQ_PART)
    formats = [name for name in ["chrome", "perfetto", "csv", "html"] if exports(gpurec)]
    if not formats:
        bench.missing("this gpurec has no export")
    if not shutil.which("jq"):
        bench.missing("there is no jq here: nothing to compare with (apt-get install jq)")
    for _ in bench.each_round():
        for name, trace in traces.items():
            yield from samples(name, "summary", trace, [gpurec, "summary", trace])
            if shutil.which("jq"):
                piece = folder / f"{name}_part.jsonl"
                yield from samples(name, "jq", piece, ["jq", "-n", JQ, piece])
            for format in formats:
                command = [gpurec, "export", "--format", format, "-o", "-", trace]
                yield from samples(name, f"export {format}", trace, command)
    for name in traces:
        for tool in ["summary", *(f"export {format}" for format in formats)]:
            yield Figure(f"{tool} ÷ jq, MB/s, {name}", (name, tool, SPEED), over=(name, "jq", SPEED))


def samples(name, tool, trace, command):
    cpu, wall, peak = run(command)
    size = trace.stat().st_size / MB
    yield Sample(name, tool, SPEED, size / cpu)
    yield Sample(name, tool, "s by the clock", wall)
    yield Sample(name, tool, "peak MB", peak / 1000)


def exports(gpurec):
    return subprocess.run([gpurec, "export", "--help"], capture_output=True).returncode == 0


def demo_trace(bench, gpurec, trace, size):
    """A recording of the stand-in program, as long as it has to be."""
    bench.say("recording the demo (a minute for 1 GB)")
    record = [gpurec, "demo", "-q", "-o", trace, "--", "--loops"]
    quiet = {"stderr": subprocess.DEVNULL}
    run([*record, 100], **quiet)
    first = trace.stat().st_size
    run([*record, 200], **quiet)
    loop = (trace.stat().st_size - first) / 100
    run([*record, max(1, round(size / loop))], **quiet)
    return trace


def repeat(recording, trace, size):
    """A real recording end to end, with its event_ids and times counted on."""
    text = recording.read_bytes()
    if recording.suffix == ".zst":
        if not shutil.which("zstd"):
            raise Failed("zstd is needed to read a .zst trace (apt-get install zstd)")
        text = subprocess.run(["zstd", "-dcq", recording], stdout=subprocess.PIPE, check=True).stdout
    header, *lines, _ = text.splitlines(keepends=True)
    place = re.compile(rb'\{"event_id":(\d+),"ts":(\d+)\.(\d{9})')
    other = re.compile(rb'"(?:begin|parent)":(\d+)(?=[,}])')
    parts = []
    for line in lines:
        at = place.match(line)
        rest = line[at.end() :]
        named = other.search(rest)
        before, after = (rest[: named.start(1)], rest[named.end(1) :]) if named else (rest, None)
        ns = int(at[2]) * 10**9 + int(at[3])
        parts.append((int(at[1]), ns, before, int(named[1]) if named else 0, after))
    times, written, span = 0, len(header), parts[-1][1] + 1000
    with open(trace, "wb") as out:
        out.write(header)
        while written < size:
            for event, ns, before, named, after in parts:
                ns += times * span
                line = b'{"event_id":%d,"ts":%d.%09d%s' % (event + times * len(parts), *divmod(ns, 10**9), before)
                if after is not None:
                    line += b"%d%s" % (named + times * len(parts), after)
                written += out.write(line)
            times += 1
        events = 1 + times * len(parts)
        seconds = b"%d.%09d" % divmod(times * span, 10**9)
        end = {"type": "end", "name": "end", "events": events, "lost": 0, "in_flight": [], "complete": True}
        out.write(b'{"event_id":%d,"ts":%s,%s\n' % (events, seconds, json.dumps(end)[1:].encode()))


def shorten(trace, piece, size):
    """The first lines of a trace."""
    with open(trace, "rb") as lines, open(piece, "wb") as out:
        out.write(lines.read(size) + lines.readline())


def run(command, start=subprocess.Popen, rest=0.01, **options):
    """(CPU seconds, wall seconds, peak kB) of a command that must succeed; it is looked at after each rest."""
    words = [str(word) for word in command]
    began = time.monotonic()
    process = start(words, **{"stdout": subprocess.DEVNULL, **options})
    peak = 0
    while True:
        # What wait4 says of memory counts the time before exec, when the process was this one.
        peak = max(peak, resident(process.pid))
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(rest)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"{' '.join(words)} failed with {process.returncode}")
    return used.ru_utime + used.ru_stime, time.monotonic() - began, peak


def resident(pid):
    """The most that a process has held, in kB, as yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+)", status)
    return int(found[1]) if found else 0
