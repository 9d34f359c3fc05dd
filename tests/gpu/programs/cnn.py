"""Training of a small convolutional net from batches on the host. In: a number of steps [60]; `wait`: once PyTorch is
loaded it prints `ready` and waits for a line. Out: a line of JSON.

The comment at the end of a line names what the line does (launch, copy, sync, alloc), for sites.py; with `?` where it
depends on PyTorch's caches. What the backward pass launches has no line: another thread does it.
"""

import json
import sys

import torch
from torch.nn.functional import cross_entropy, max_pool2d, relu


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.normal = torch.nn.BatchNorm2d(32)
        self.second = torch.nn.Conv2d(32, 64, 3, padding=1)
        self.last = torch.nn.Linear(64 * 64, 10)

    def forward(self, x):
        x = self.first(x)  # launch, alloc?, set?
        x = self.normal(x)  # launch, alloc?
        x = max_pool2d(relu(x), 2)  # launch, alloc?
        x = self.second(x)  # launch, alloc?, set?
        x = max_pool2d(relu(x), 2)  # launch, alloc?
        return self.last(x.flatten(1))  # launch, alloc?


def batches(count):
    """As a DataLoader with pin_memory hands them out."""
    for _ in range(count):
        images = torch.randn(64, 3, 32, 32)
        labels = torch.randint(10, (64,))
        images = images.pin_memory()  # alloc
        labels = labels.pin_memory()  # alloc?
        yield images, labels


def step(model, optimizer, images, labels):
    images = images.to("cuda", non_blocking=True)  # copy, alloc?
    labels = labels.to("cuda", non_blocking=True)  # copy, alloc?
    optimizer.zero_grad(set_to_none=True)
    out = model(images)
    loss = cross_entropy(out, labels)  # launch, alloc?
    loss.backward()  # launch, alloc?, sync?, copy?
    optimizer.step()  # launch, alloc?, copy?
    return loss.item()  # copy, sync, alloc?


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    if sys.argv[2:] == ["wait"]:
        print("ready", flush=True)
        sys.stdin.readline()
    torch.manual_seed(0)
    model = Net().to("cuda")  # copy, sync, alloc
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for images, labels in batches(steps):
        loss = step(model, optimizer, images, labels)
    torch.cuda.synchronize()  # sync
    print(json.dumps({"steps": steps, "loss": loss}))


if __name__ == "__main__":
    main()
