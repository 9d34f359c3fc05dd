"""A CUDA graph of twelve kernels, launched again and again. In: how often [1000]. Out: a line of JSON: how often, and
how many kernels the graph has: each line of `step` is one.
"""

import json
import sys

import torch

ROUNDS, KERNELS = 4, 3
SIZE = 1 << 22


def step(values, weights):
    for _ in range(ROUNDS):
        values.add_(weights)
        values.mul_(0.5)
        values.sin_()


def captured(values, weights):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(values, weights)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(values, weights)
    return graph


def main():
    replays = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    values, weights = (torch.ones(SIZE, device="cuda") for _ in range(2))
    graph = captured(values, weights)
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    print(json.dumps({"steps": replays, "replays": replays, "kernels": ROUNDS * KERNELS}))


if __name__ == "__main__":
    main()
