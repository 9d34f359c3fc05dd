"""Allocates and frees tensors of random sizes on two streams. In: a seed [1]. Out: a line of JSON for each of ten
instants, at which it also calls cudaMemGetInfo once, and nowhere else: the bytes that PyTorch says are allocated.

In the first five instants the sizes are any: what was asked for is known, `requested`. Then all is freed, and the sizes
are those that PyTorch neither rounds nor pads: multiples of 512 bytes to 1 MiB, and of 2 MiB: `allocated` is the same.
"""

import json
import random
import sys
import time

import torch

INSTANTS, STEPS = 10, 60
KIB, MIB = 1 << 10, 1 << 20


def odd_size(rng):
    return rng.choice([rng.randint(1, 3000), rng.randint(3000, 2 * MIB), rng.randint(2 * MIB, 40 * MIB)])


def even_size(rng):
    return rng.choice([512 * rng.randint(1, 2048), 2 * MIB * rng.randint(1, 20)])


def work(rng, size_of, tensors, streams):
    for _ in range(STEPS):
        if tensors and rng.random() < 0.45:
            tensors.pop(rng.randrange(len(tensors)))
            continue
        with torch.cuda.stream(rng.choice(streams)):
            tensors.append(torch.empty(size_of(rng), dtype=torch.uint8, device="cuda"))


def instant(number, kind, tensors):
    torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    line = {"instant": number, "sizes": kind, "ns": time.monotonic_ns(), "tensors": len(tensors)}
    line["own"] = sum(tensor.nbytes for tensor in tensors)
    for name in ["requested_bytes", "allocated_bytes", "reserved_bytes"]:
        line[name] = stats[f"{name}.all.current"]
    print(json.dumps(line))


def main():
    rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    streams, tensors = [torch.cuda.Stream(), torch.cuda.Stream()], []
    for number in range(INSTANTS):
        if number == INSTANTS // 2:
            tensors.clear()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        odd = number < INSTANTS // 2
        work(rng, odd_size if odd else even_size, tensors, streams)
        instant(number, "odd" if odd else "even", tensors)


if __name__ == "__main__":
    main()
