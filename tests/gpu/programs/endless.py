"""Launches small kernels until it is killed, faster than the GPU runs them. In: nothing. Out: `ready` and its PID once
CUDA runs, then a line of JSON for each thousand launches: how many there were.
"""

import json
import os

import torch

SIZE = 1 << 22


def main():
    values = torch.ones(SIZE, device="cuda")
    torch.cuda.synchronize()
    print("ready", os.getpid(), flush=True)
    launches = 0
    while True:
        for _ in range(1000):
            values.add_(1.0)
        launches += 1000
        print(json.dumps({"launches": launches}), flush=True)


if __name__ == "__main__":
    main()
