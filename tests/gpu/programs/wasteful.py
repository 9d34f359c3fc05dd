"""PyTorch used as it should not be. In: `tiny`, or nothing for all other patterns. Out: a line of JSON: how many patterns.

The comment at the end of a line says what `report waste` must find there, in its own words.
"""

import json
import sys

import torch


def allocates_again():
    for _ in range(300):
        big = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")  # waste: allocates them again
        big.zero_()
        del big
        torch.cuda.empty_cache()


def waits_needlessly(a):
    for _ in range(3000):
        a = a @ a
        torch.cuda.synchronize()  # waste: waits though nothing is copied


def fetches_one_by_one(values):
    total = 0.0
    for index in range(40000):
        total += values[index].item()  # waste: waits for a single
    return total


def copies_pageable(weight):
    host = torch.zeros(2048, 2048)
    out = None
    for _ in range(200):
        batch = host.to("cuda")  # waste: pageable host memory, again
        out = batch @ weight
    return out


def launches_tiny(values):
    for _ in range(100000):
        values.add_(1.0)  # waste: tiny launches


def main():
    values = torch.zeros(40000, device="cuda")
    torch.cuda.synchronize()
    if sys.argv[1:] == ["tiny"]:
        launches_tiny(values)
        torch.cuda.synchronize()
        print(json.dumps({"patterns": 1}))
        return
    allocates_again()
    waits_needlessly(torch.zeros(4096, 4096, device="cuda", dtype=torch.float16))
    fetches_one_by_one(values)
    copies_pageable(torch.zeros(2048, 2048, device="cuda"))
    torch.cuda.synchronize()
    print(json.dumps({"patterns": 4}))


if __name__ == "__main__":
    main()
