"""Small traces for traces/: with stacks, and with stacks and GPU work. In: short recordings of cnn.py. Out: one of each
kind, of at most 300 kB compressed.

The import of PyTorch makes ten times as many calls as a few steps. So the first that fits is taken of: all of it; what
comes after the import, by --pid; and all but registrations and queries, which costs the trace its devices.
"""

import json
import re

from .frame import Failed, part
from .running import recorded_while_running

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
        ways = {"all": whole, "after the import": after_import, "without registrations": skipping}
        keep(machine, section, fitting(machine, section, ways, "--stacks"), NAME)


@part("gpu-trace", "A small trace with GPU work for traces/")
def gpu_trace(machine, section):
    with section.step(f"cnn.py with --gpu, at most {LIMIT} bytes"):
        ways = {"all": whole, "without registrations": skipping}
        made = fitting(machine, section, ways, "--stacks", "--gpu")
        model = re.search(r"\b[A-Z]+\d+\w*", section.about)
        path = keep(machine, section, made, f"torch_gpu_{model[0].lower() if model else 'unknown'}.jsonl.zst")
        of_gpu(machine, section, path)


def fitting(machine, section, ways, *options):
    """The first recording that is small enough."""
    for name, way in ways.items():
        for steps in STEPS:
            made = way(machine, steps, *options)
            size = made.stat().st_size
            section.say(f"{steps} steps, {name}: {size} bytes.")
            if size <= LIMIT:
                return made
    raise Failed(f"even {STEPS[-1]} steps take more than {LIMIT} bytes")


def whole(machine, steps, *options):
    return machine.record("cnn", "cnn", steps, options=options, suffix=".jsonl.zst").trace


def after_import(machine, steps, *options):
    made = machine.made / "attached.jsonl.zst"
    recorded_while_running(machine, made, options, "cnn", steps, "wait")
    return made


def skipping(machine, steps, *options):
    return whole(machine, steps, *options, *(word for name in SKIPPED for word in ("--skip", name)))


def of_gpu(machine, section, path):
    summary = json.loads(machine.read("summary", "--json", path))
    gpu = summary.get("gpu") or {}
    section.say(f"Kernels {gpu.get('kernel_count')}, copies {gpu.get('copy_count')}, unmatched {gpu.get('unmatched')}.")
    section.check(bool(gpu.get("kernel_count")), "it has `gpu` lines")
    section.block(machine.read("report", "gpu", "--top", "8", "--width", "140", path))


def keep(machine, section, made, name):
    path = machine.out / name
    made.rename(path)
    summary = json.loads(machine.read("summary", "--json", path))
    figures = summary.get("stacks") or {}
    section.say(f"It is {path.name}. Its stacks: {figures.get('stacks')}, cut {figures.get('cut')}.")
    complete, why = summary.get("complete"), summary.get("incomplete_because") or ""
    section.check(bool(complete), f"complete: {complete} {why}")
    for role in ["launch", "copy", "sync", "alloc"]:
        section.block(machine.read("report", "stacks", "--role", role, "--top", "3", "--width", "140", path))
    return path
