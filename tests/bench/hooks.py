"""What a hook costs, what a burst loses, how fast records are written. In: the stand-in library and its callers. Out:
samples and figures; (a), (b) and (c) of the benchmark.

A call's cost is CPU time of the thread that makes it, so that other work on the machine does not count; the time by the
clock stands beside it. On an idle machine they are the same, as long as a CPU is left for the recorder.
"""

import os
import signal
import subprocess
import time

from . import replay
from .frame import Failed, Figure, Sample, part
from .tools import FUNCTION, PROLOGUES, Bpftrace, Programs, Recorder, cpus, end_line, recorded, site

# Batches of 5 ms or 4,000 calls with pauses of 10 ms, in which the recorders can catch up: nothing may be lost here.
BATCH_MS, MOST_CALLS, BATCHES, PAUSE_MS = 5, 4000, 15, 10
CPU, WALL = "CPU ns a call", "ns a call"


def thread_counts():
    return [1, 2] + ([14] if cpus() >= 16 else [])


def batches(programs, names=PROLOGUES):
    """The command that measures."""
    threads = ",".join(map(str, thread_counts()))
    settings = [BATCH_MS, MOST_CALLS, BATCHES, PAUSE_MS, threads]
    return [programs.hits, "batches", FUNCTION, *map(str, settings), *(programs.libraries[name] for name in names)]


def samples(tool, printed, names=PROLOGUES):
    for line in printed.splitlines():
        library, threads, wall, cpu = line.split()
        case = f"{names[int(library)]}, {threads} thread{'' if threads == '1' else 's'}"
        yield Sample(case, tool, CPU, float(cpu))
        yield Sample(case, tool, WALL, float(wall))


def output_of(command):
    words = [str(word) for word in command]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def nothing(bench, programs):
    return output_of(batches(programs))


def empty(bench, programs):
    """At the places that gpurec hooks."""
    places = [f"{path}+{site(bench, path)}" for path in programs.libraries.values()]
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    loader = bench.start([programs.empty, FUNCTION, *places], text=True, **pipes)
    if loader.stdout.readline().strip() != "ready":
        raise Failed(f"no empty session program can be attached (Linux 6.13?): {loader.stderr.read().strip()}")
    printed = output_of(batches(programs))
    loader.stdin.close()
    loader.wait()
    return printed


def gpurec(bench, programs):
    trace = bench.folder / "hooks.jsonl"
    printed, _ = recorded(bench, ["-q", "-o", trace], batches(programs))
    end = end_line(trace)
    trace.unlink()
    if not end["complete"]:
        bench.missing(f"recording was not complete: {end.get('incomplete_because')}")
    return printed


def summary_only(bench, programs):
    return recorded(bench, ["-q", "--summary-only"], batches(programs))[0]


def bpftrace_run(bench, programs, bpftrace):
    """With buffers that hold all of it: what it has no room for would cost it nothing."""
    tracer = bpftrace.start(programs.libraries.values(), bench.folder / "hooks.txt", ["BPFTRACE_PERF_RB_PAGES=16384"])
    printed = output_of(batches(programs))
    tracer.finish()
    lost, kept = tracer.lost(), tracer.lines()
    tracer.output.unlink()
    return printed, 100 * lost / max(1, lost + kept)


@part("hooks", "(a) what a hook costs a call: nothing, an empty program, gpurec, bpftrace; 2 minutes", 10)
def hooks(bench):
    programs = Programs(bench)
    tools = {"nothing": nothing, "empty": empty, "gpurec": gpurec, "gpurec --summary-only": summary_only}
    try:
        bpftrace = Bpftrace(bench)
        tools["bpftrace"] = bpftrace_run
    except Failed as failed:
        bench.missing(str(failed))
    for number in bench.each_round():
        for name in bench.in_turn(number, list(tools)):
            try:
                if name == "bpftrace":
                    printed, lost = bpftrace_run(bench, programs, bpftrace)
                    yield Sample("", name, "% of its lines lost", lost)
                else:
                    printed = tools[name](bench, programs)
            except Failed as failed:
                bench.missing(f"{name}: {failed}")
                tools.pop(name)
                continue
            yield from samples(name, printed)
    yield from figures()


def figures():
    against_bpftrace = {"push": "<= 0.85", "compare": "<= 0.25", "endbr": ""}
    for name in PROLOGUES:
        ours = (f"{name}, 1 thread", "gpurec", CPU)
        yield Figure(f"recorded ÷ empty program, {name}", ours, over=(ours[0], "empty", CPU), target="<= 1.25")
        target = against_bpftrace[name]
        yield Figure(f"recorded ÷ bpftrace, {name}", ours, over=(ours[0], "bpftrace", CPU), target=target)
        counted = (ours[0], "gpurec --summary-only", CPU)
        yield Figure(f"--summary-only ÷ empty program, {name}", counted, over=(ours[0], "empty", CPU))
        for other in ["empty", "bpftrace"]:
            by_clock = ((ours[0], tool, WALL) for tool in ["gpurec", other])
            yield Figure(f"recorded ÷ {other}, {name}, by the clock", next(by_clock), over=next(by_clock))
    push = ("push, 1 thread", "gpurec", CPU)
    yield Figure("compare ÷ push, recorded", ("compare, 1 thread", *push[1:]), over=push, target="<= 1.2")
    for threads in thread_counts()[1:]:
        target = "<= 1.4" if threads >= 14 else ""
        # With fewer CPUs than threads and recorder want, the clock says how they share.
        what = WALL if cpus() > threads + 1 else CPU
        many, one = (f"push, {threads} threads", "gpurec", what), ("push, 1 thread", "gpurec", what)
        yield Figure(f"{threads} threads ÷ 1, recorded ({what})", many, over=one, target=target)


# --- bursts ----------------------------------------------------------------------------------------------------

BURST = 3_000_000


def burst(programs, calls, cpu=-1):
    return [programs.hits, "burst", FUNCTION, str(calls), str(cpu), programs.libraries["push"]]


@part("burst", "(b) 3 million calls by one thread: what is lost; a minute", 3)
def lost_in_bursts(bench):
    programs = Programs(bench)
    try:
        bpftrace = Bpftrace(bench)
    except Failed as failed:
        bench.missing(str(failed))
        bpftrace = None
    for _ in bench.each_round():
        trace = bench.folder / "burst.jsonl"
        printed, _ = recorded(bench, ["-q", "-o", trace], burst(programs, BURST))
        yield from of_burst("gpurec", printed, *of_trace(trace))
        if bpftrace:
            tracer = bpftrace.start([programs.libraries["push"]], bench.folder / "burst.txt")
            printed = output_of(burst(programs, BURST))
            tracer.finish()
            yield Sample("3 M calls", "bpftrace", "lines it says it lost", tracer.lost())
            yield from of_burst("bpftrace", printed, tracer.lines())
            tracer.output.unlink()
    lost = "% of B and E lines lost"
    yield Figure("3 M calls: lines that gpurec lost", ("3 M calls", "gpurec", "lines lost"), target="<= 0")
    yield Figure("3 M calls: % that bpftrace lost", ("3 M calls", "bpftrace", lost))


def of_trace(trace):
    """B and E lines, counted; the end line must agree."""
    with open(trace, "rb") as lines:
        calls = sum(b'"phase":"' in line for line in lines)
    end = end_line(trace)
    trace.unlink()
    if end["lost"] + calls != 2 * BURST:
        raise Failed(f"the trace has {calls} lines of calls, and says that it lost {end['lost']}: of {2 * BURST}")
    return (calls,)


def of_burst(tool, printed, lines):
    ns = int(printed.split()[1])
    yield Sample("3 M calls", tool, "ns a call", ns / BURST)
    yield Sample("3 M calls", tool, "lines lost", 2 * BURST - lines)
    yield Sample("3 M calls", tool, "% of B and E lines lost", 100 * (2 * BURST - lines) / (2 * BURST))


# --- from ring to file -----------------------------------------------------------------------------------------

RING_MIB = 512
# A call's two records, with their headers, generously.
BYTES_A_CALL = 224
FAST, FAST_CPU = "M events a second", "M events a second of CPU"


@part("sustained", "(c) events a second from ring to file, on one core, and with 1 to 8 threads; three minutes", 5)
def sustained(bench):
    programs, case = None, None
    for number in bench.each_round():
        try:
            programs, (calls, ours, theirs) = programs or Programs(bench), cores()
            none_cpu, none_wall, _ = drained(bench, programs, 0, ours, theirs)
            cpu, wall, events = drained(bench, programs, calls, ours, theirs)
            case = f"{2 * calls:,} events".replace(",", "_")
            yield Sample(case, "gpurec", FAST, events / (wall - none_wall) / 1e6)
            yield Sample(case, "gpurec", FAST_CPU, events / (cpu - none_cpu) / 1e6)
        except Failed as failed:
            bench.missing(str(failed))
        yield from replay.samples(bench, number)
    if case:
        yield Figure("M events a second, ring to file, one core", (case, "gpurec", FAST), target=">= 2")
        yield Figure("the same by CPU time (user + system)", (case, "gpurec", FAST_CPU))
    yield from replay.figures()


def cores():
    """(how many calls one thread can make, which fills the ring of one CPU; the CPU of gpurec; the caller's)"""
    if cpus() < 2:
        raise Failed("two CPUs are needed: one for the caller, one for gpurec")
    calls = min(1_000_000, (RING_MIB << 20) // os.cpu_count() * 9 // 10 // BYTES_A_CALL)
    return calls, *sorted(os.sched_getaffinity(0))[:2]


def drained(bench, programs, calls, ours, theirs):
    """gpurec on one CPU: stopped while a burst fills the ring, then timed till it has written all of it and is gone."""
    trace = bench.folder / "drain.jsonl"
    options = ["-q", "--ring", str(RING_MIB), "-o", trace]
    recorder = Recorder(bench, options, burst(programs, calls, theirs), cpu=ours)
    if recorder.line() != "ready":
        recorder.finish()
        raise Failed("hits did not begin")
    time.sleep(0.2)
    recorder.process.send_signal(signal.SIGSTOP)
    before = recorder.cpu_now()
    recorder.tell()
    recorder.line()
    recorder.line()
    began = time.monotonic()
    recorder.process.send_signal(signal.SIGCONT)
    recorder.finish()
    wall = time.monotonic() - began
    end = end_line(trace)
    trace.unlink()
    if end["lost"]:
        raise Failed(f"the ring was too small for the burst: {end['lost']} lost")
    return recorder.cpu_s - before, wall, end["events"]
