"""A small trace with stacks, for traces/. In: short recordings of cnn.py. Out: one that has at most 300 kB compressed.

The import of PyTorch makes ten times as many calls as a few steps. So the first that fits is taken of: all of it; what
comes after the import, by --pid; and all but registrations and queries, which costs the trace its devices.
"""

import json
import subprocess
import sys
import time

from .frame import LONGEST, PROGRAMS, Failed, ended, part, tail

LIMIT = 300_000
STEPS = [12, 4, 2]
NAME = "torch_stacks.jsonl.zst"
SKIPPED = [
    "__cuda*",
    "cuGetProcAddress*",
    "cuDeviceGet*",
    "cudaGetDevice*",
    "cuCtxGetDevice_v2",
    "cuDevicePrimaryCtxGetState",
    "cudaDeviceGet*",
    "cudaGetLastError",
    "cudaPeekAtLastError",
    "cuCtxGetCurrent",
    "cuFuncGet*",
    "cudaFuncGet*",
    "cuKernelGet*",
    "cuLibraryGet*",
    "cuModuleGet*",
    "cudaStreamIsCapturing",
    "cuStreamIsCapturing",
    "cudaStreamGetCaptureInfo*",
    "cuStreamGetCaptureInfo*",
]


@part("trace", "A small trace for traces/")
def trace(machine, section):
    with section.step(f"cnn.py, at most {LIMIT} bytes"):
        for name, record in {"all": whole, "after the import": after_import, "without registrations": skipping}.items():
            for steps in STEPS:
                made = record(machine, str(steps))
                size = made.stat().st_size
                section.say(f"{steps} steps, {name}: {size} bytes.")
                if size <= LIMIT:
                    keep(machine, section, made)
                    return
        raise Failed(f"even {STEPS[-1]} steps take more than {LIMIT} bytes")


def whole(machine, steps):
    return machine.record("cnn", "cnn", steps, suffix=".jsonl.zst").trace


def skipping(machine, steps):
    options = ["--stacks", *(word for name in SKIPPED for word in ("--skip", name))]
    return machine.record("cnn", "cnn", steps, options=options, suffix=".jsonl.zst").trace


def after_import(machine, steps):
    made = machine.made / "attached.jsonl.zst"
    made.unlink(missing_ok=True)
    pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
    command = [sys.executable, "-B", str(PROGRAMS / "cnn.py"), steps, "wait"]
    with subprocess.Popen(command, text=True, **pipes) as program, ended(program):
        if program.stdout.readline().strip() != "ready":
            raise Failed(f"cnn.py ended early: {program.communicate()[1].strip()[-300:]}")
        options = ["-q", "--stacks", "-o", str(made), "--pid", str(program.pid)]
        pipes["stdin"] = subprocess.DEVNULL
        with subprocess.Popen([machine.gpurec, *options], text=True, **pipes) as recorder, ended(recorder):
            until_recording(made, recorder)
            program.communicate("go\n", timeout=LONGEST)
            printed, said = recorder.communicate(timeout=LONGEST)
    done = subprocess.CompletedProcess([], recorder.returncode, printed, said)
    if done.returncode or program.returncode:
        raise Failed(f"cnn.py ended with {program.returncode}, gpurec with {done.returncode}: {tail(done)}")
    return made


def until_recording(made, recorder):
    limit = time.monotonic() + 60
    while not (made.exists() and made.stat().st_size):
        if recorder.poll() is not None or time.monotonic() > limit:
            raise Failed("gpurec does not attach to cnn.py")
        time.sleep(0.1)
    time.sleep(1)


def keep(machine, section, made):
    path = machine.out / NAME
    made.rename(path)
    summary = json.loads(machine.read("summary", "--json", path))
    figures = summary.get("stacks") or {}
    section.say(f"It is {path.name}. Its stacks: {figures.get('stacks')}, cut {figures.get('cut')}.")
    complete, why = summary.get("complete"), summary.get("incomplete_because") or ""
    section.check(bool(complete), f"complete: {complete} {why}")
    for role in ["launch", "copy", "sync", "alloc"]:
        section.block(machine.read("report", "stacks", "--role", role, "--top", "3", "--width", "140", path))
