"""The machine that a report is of. In: this machine. Out: a sentence: GPU, driver, Linux, PyTorch, the binaries. A
machine without PyTorch or a GPU is refused with one sentence.
"""

import json
import os
import subprocess
import sys
import time

from .frame import Failed

ASKED = """
import json, sys
try:
    import torch
except ImportError as error:
    sys.exit(f"has no PyTorch ({error}): run this with a python3 that has it")
if not torch.cuda.is_available():
    sys.exit(f"has PyTorch {torch.__version__}, which sees no GPU: nvidia-smi shows whether the driver does")
print(json.dumps([torch.__version__, torch.version.cuda, torch.cuda.get_device_name(), torch.cuda.device_count()]))
"""


def facts(gpurec, before):
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{sys.executable} {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    torch, cuda, gpu, count = json.loads(done.stdout.splitlines()[-1])
    binaries = version(gpurec) + (f"; before: {version(before)}" if before else "")
    return (
        f"{count} × {gpu}, driver {driver()}, Linux {os.uname().release}, {len(os.sched_getaffinity(0))} CPUs, "
        f"Python {sys.version.split()[0]}, PyTorch {torch} (CUDA {cuda}), {binaries}, "
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC"
    )


def version(gpurec):
    done = subprocess.run([gpurec, "--version"], capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{gpurec} --version ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


def driver():
    try:
        with open("/sys/module/nvidia/version") as text:
            return text.read().strip()
    except OSError:
        return "not known"
