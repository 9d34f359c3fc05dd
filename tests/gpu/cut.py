"""A small trace with stacks, for traces/. In: short recordings of cnn.py. Out: the longest of them that has at most
300 kB compressed.
"""

import json

from .frame import Failed, part

LIMIT = 300_000
STEPS = [20, 10, 6, 4, 3, 2]
NAME = "torch_stacks.jsonl.zst"
# What the import of PyTorch calls, and what only asks: ten times as many lines as the rest.
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
        options = ["--stacks", *(word for name in SKIPPED for word in ("--skip", name))]
        for steps in STEPS:
            recording = machine.record("cnn", "cnn", str(steps), options=options, suffix=".jsonl.zst")
            size = recording.trace.stat().st_size
            section.say(f"{steps} steps: {size} bytes.")
            if size <= LIMIT:
                keep(machine, section, recording.trace)
                return
        raise Failed(f"even {STEPS[-1]} steps take more than {LIMIT} bytes")


def keep(machine, section, made):
    path = machine.out / NAME
    made.rename(path)
    summary = json.loads(machine.read("summary", "--json", path))
    figures = summary.get("stacks") or {}
    section.say(f"It is {path.name}. Its stacks: {figures.get('stacks')}, cut {figures.get('cut')}.")
    section.check(bool(summary.get("complete")), f"complete: {summary.get('complete')} {summary.get('incomplete_because') or ''}")
    for role in ["launch", "copy", "sync", "alloc"]:
        section.block(machine.read("report", "stacks", "--role", role, "--top", "3", "--width", "140", path))
