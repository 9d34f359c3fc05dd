"""Training of a small perceptron with AdamW. In: a number of steps [60]. Out: a line of JSON: how many there were.

The comment at the end of a line names what the line does (launch, copy, sync, alloc), for sites.py; with `?` where it
depends on PyTorch's caches. What the backward pass launches has no line: another thread does it.
"""

import json
import sys

import torch

WIDTH = 1024


def net():
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def step(model, optimizer, batch, target):
    optimizer.zero_grad(set_to_none=True)
    out = model(batch)  # launch, alloc?, set?
    error = out - target  # launch, alloc?
    loss = error.square().mean()  # launch, alloc?, set?
    loss.backward()  # launch, alloc?, sync?, copy?
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # launch, alloc?, copy?, set?
    optimizer.step()  # launch, alloc?, set?
    return loss.detach()


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    torch.manual_seed(0)
    model = net().to("cuda")  # copy, sync, alloc
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(256, WIDTH, device="cuda")  # launch, alloc?
    target = torch.zeros_like(batch)  # alloc?, launch?, set?
    value = None
    for number in range(steps):
        loss = step(model, optimizer, batch, target)
        if number % 10 == 9:
            value = loss.item()  # copy, sync, alloc?
    torch.cuda.synchronize()  # sync
    print(json.dumps({"steps": steps, "loss": value}))


if __name__ == "__main__":
    main()
