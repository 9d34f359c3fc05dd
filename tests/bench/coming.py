"""What gpurec costs when it comes and goes, and those whom it does not record. In: NVIDIA's libraries
(scripts/nvidia-libs, or GPUREC_NVIDIA_LIBS), `true`, a bystander. Out: samples and figures; (d), (e) and (i).
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from .frame import ROOT, Failed, Figure, Sample, part
from .hooks import CPU, WALL, batches, output_of, samples
from .tools import FUNCTION, Programs, Recorder, recorded


def nvidia_libraries(bench):
    folder = Path(os.environ.get("GPUREC_NVIDIA_LIBS") or bench.built.parent / "nvidia").absolute()
    found = [folder / "libcuda.so.1", folder / "cudart13/libcudart.so.13"]
    if not all(path.exists() for path in found):
        bench.say("fetching NVIDIA's libraries")
        if subprocess.run([ROOT / "scripts/nvidia-libs", folder], stdout=subprocess.DEVNULL).returncode:
            raise Failed("NVIDIA's libraries could not be fetched: set GPUREC_NVIDIA_LIBS to a folder that has them")
        bench.hand_over(folder)
    return found


@part("attach", "(d) attaching to all of libcuda and libcudart, and detaching; half a minute", 10)
def attach(bench):
    libraries = nvidia_libraries(bench)
    programs = Programs(bench)
    trace = bench.folder / "attach.jsonl"
    for _ in bench.each_round():
        _, recorder = recorded(bench, ["-v", "-o", trace], [programs.hits, "load", *libraries])
        trace.unlink()
        yield from attached(recorder.said)
    yield Figure("attach all functions, ms", ("both libraries", "gpurec", "ms to attach"), target="<= 50")
    yield Figure("detach all functions, ms", ("both libraries", "gpurec", "ms to detach"), target="<= 150")


def attached(said):
    came = re.findall(r"attached (\d+) functions of \S+ in ([\d.]+) ms", said)
    went = re.findall(r"detached (\d+) functions in ([\d.]+) ms", said)
    if len(came) != 2 or len(went) != 1:
        raise Failed(f"gpurec -v does not say how long it attached and detached: {said.strip()[-500:]}")
    yield Sample("both libraries", "gpurec", "functions", sum(int(count) for count, _ in came))
    yield Sample("both libraries", "gpurec", "ms to attach", sum(float(ms) for _, ms in came))
    yield Sample("both libraries", "gpurec", "ms to detach", float(went[0][1]))


def timed(command):
    """(milliseconds by the clock, CPU milliseconds of all of its processes)"""
    began = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"{command[0]} ended with {process.returncode}: {said.decode(errors='replace')[-300:]}")
    return wall * 1000, (used.ru_utime + used.ru_stime) * 1000


# The kernel goes on for a while with the last recording's hooks and memory: with a pause nobody pays for that but who
# made it, without one the next pays too.
PAUSES = {"after a pause of 0.5 s": 0.5, "right after another": 0}


@part("start", "(e) gpurec -- true against true; half a minute", 10)
def start(bench):
    trace = bench.folder / "start.jsonl"
    true = shutil.which("true")
    tools = {"true": [true], "gpurec -- true": [bench.gpurec, "-q", "-o", trace, "--", true]}
    for number in bench.each_round():
        for case, pause in PAUSES.items():
            for name in bench.in_turn(number, list(tools)):
                time.sleep(pause)
                wall, cpu = timed(tools[name])
                yield Sample(case, name, "ms", wall)
                yield Sample(case, name, "CPU ms", cpu)
    for case in PAUSES:
        for what, target in [("ms", "<= 150"), ("CPU ms", "")]:
            keys = ((case, tool, what) for tool in ["gpurec -- true", "true"])
            text = f"gpurec -- true less true, {what}, {case}"
            yield Figure(text, next(keys), less=next(keys), target=target)


@part("bystander", "(i) a process that is not recorded, while gpurec records another one; half a minute", 10)
def bystander(bench):
    programs = Programs(bench)
    tools = ["nothing", "gpurec"]
    for number in bench.each_round():
        for name in bench.in_turn(number, tools):
            if name == "nothing":
                printed = output_of(batches(programs, ["push"]))
            else:
                printed = beside_a_recording(bench, programs)
            yield from (one for one in samples(name, printed, ["push"]) if one.case == "push, 1 thread")
    for what, target in [(CPU, "<= 1.01"), (WALL, "")]:
        keys = (("push, 1 thread", tool, what) for tool in ["gpurec", "nothing"])
        yield Figure(f"bystander ÷ nothing attached ({what})", next(keys), over=next(keys), target=target)
    keys = (("push, 1 thread", tool, CPU) for tool in ["gpurec", "nothing"])
    yield Figure("bystander, ns more a call", next(keys), less=next(keys))


def beside_a_recording(bench, programs):
    """The recorded one makes few calls: it must not take the bystander's CPU."""
    trace = bench.folder / "bystander.jsonl"
    calls = [programs.hits, "rate", FUNCTION, "1000", "3600", programs.libraries["push"]]
    recorder = Recorder(bench, ["-q", "-o", trace], calls)
    limit = time.monotonic() + 20
    while not (trace.exists() and '"phase":"B"' in trace.read_text()):
        if recorder.process.poll() is not None or time.monotonic() > limit:
            raise Failed(f"gpurec does not record: {recorder.errors.read_text()[-300:]}")
        time.sleep(0.05)
    try:
        return output_of(batches(programs, ["push"]))
    finally:
        # Its command gets the signal from it, and ends by it: that status is not 0.
        recorder.process.terminate()
        recorder.process.wait()
        trace.unlink()
