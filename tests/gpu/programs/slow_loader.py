"""Training with a data loader that is too slow: the GPU waits for each batch. In: a number of steps [150]. Out: a line
of JSON: how many there were, and when they began and ended (instants.py).

The comment at the end of a line says what `report idle` must find there.
"""

import json
import sys
import time

import torch
import training
from instants import instant

SECONDS = 0.03  # the loader's time for each batch
BATCH = 8192
WARM_UP = 3


def batches(count):
    host = torch.randn(BATCH, training.WIDTH)
    for _ in range(count):
        time.sleep(SECONDS)
        yield host


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    torch.manual_seed(0)
    model = training.net().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    target = torch.zeros(BATCH, training.WIDTH, device="cuda")
    for _ in range(WARM_UP):
        training.step(model, optimizer, target, target)
    began = instant()
    for batch in batches(steps):
        on_gpu = batch.to("cuda")  # idle: own code
        training.step(model, optimizer, on_gpu, target)
    print(json.dumps({"steps": steps, "began_ns": began, "ended_ns": instant()}))


if __name__ == "__main__":
    main()
