"""Training with a metric that waits for the GPU in each step, in a line where a wait is easily overlooked. In: a number
of steps [400]; `kept`: the metric stays on the GPU. Out: a line of JSON: how many steps there were, when they began and
ended (instants.py), and the mean of the metric.

The comment at the end of a line says what `report idle` must find there. A step takes the GPU longer than it takes the
host to launch it, so that the GPU would never be idle without the wait.
"""

import json
import sys

import torch
import training
from instants import instant

BATCH = 16384
WARM_UP = 3


class Metric:
    """The mean of the losses."""

    def __init__(self, kept):
        self.kept, self.total, self.count = kept, 0.0, 0

    def update(self, loss):
        self.count += 1
        self.total += loss if self.kept else loss.item()  # idle: synchronisation

    def mean(self):
        return float(self.total) / self.count


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    metric = Metric(kept=sys.argv[2:] == ["kept"])
    torch.manual_seed(0)
    model = training.net().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, training.WIDTH, device="cuda")
    target = torch.zeros_like(batch)
    for _ in range(WARM_UP):
        training.step(model, optimizer, batch, target)
    began = instant()
    for _ in range(steps):
        metric.update(training.step(model, optimizer, batch, target))
    print(json.dumps({"steps": steps, "began_ns": began, "ended_ns": instant(), "mean": metric.mean()}))


if __name__ == "__main__":
    main()
