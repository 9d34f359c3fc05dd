"""profiled.py EXPORT [--wait] PROGRAM [WORD]...: another program of this folder, with torch.profiler around all of it.
In: where its export goes, or `-` for the same run without a profiler; `--wait`: once PyTorch is loaded it prints
`ready` and waits for a line. Out: what the program prints, and the export.

The profiler records what runs on the GPU and no operators. It begins before CUDA is initialised.
"""

import runpy
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

FOLDER = Path(__file__).resolve().parent


def work(words):
    name, *sys.argv[1:] = words
    sys.argv[0] = str(FOLDER / f"{name}.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
    torch.cuda.synchronize()


def main():
    export, *words = sys.argv[1:]
    if words[0] == "--wait":
        words = words[1:]
        print("ready", flush=True)
        sys.stdin.readline()
    if export == "-":
        work(words)
        return
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work(words)
    profiler.export_chrome_trace(export)


if __name__ == "__main__":
    main()
