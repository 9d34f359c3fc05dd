"""Runs out of GPU memory. In: `handled` or `not-handled`. Out: a line of JSON: what PyTorch counted. `handled` frees
what it has and continues; `not-handled` ends by the exception, with exit status 1.

The line that fails ends with `# fails`.
"""

import json
import sys

import torch

BLOCK = 2 << 30


def fill(blocks):
    while True:
        blocks.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))  # fails


def main():
    blocks = []
    stats = {}
    try:
        fill(blocks)
    except torch.cuda.OutOfMemoryError:
        stats = torch.cuda.memory_stats()
        counted = {name: stats[name] for name in ("num_ooms", "num_alloc_retries")}
        print(json.dumps({"block": BLOCK, "blocks": len(blocks), **counted}), flush=True)
        if sys.argv[1] != "handled":
            raise
    blocks.clear()
    torch.cuda.empty_cache()
    total = torch.ones(1 << 20, device="cuda").sum().item()
    assert total == 1 << 20


if __name__ == "__main__":
    main()
