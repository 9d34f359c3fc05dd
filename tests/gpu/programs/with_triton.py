"""Two kernels in Triton, launched again and again. In: a number of steps [200]. Out: a line of JSON: how many there
were.
"""

import json
import sys

import torch
import triton
import triton.language as tl

SIZE, BLOCK, TILE = 1 << 22, 1024, 64
WIDTH = 1024


@triton.jit
def scaled_sum(out, left, right, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    value = tl.load(left + at, mask=inside) + 0.5 * tl.load(right + at, mask=inside)
    tl.store(out + at, value, mask=inside)


@triton.jit
def product(out, left, right, width, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for at in range(0, width, TILE):
        a = tl.load(left + row[:, None] * width + (at + inner)[None, :])
        b = tl.load(right + (at + inner)[:, None] * width + column[None, :])
        total += tl.dot(a, b)
    tl.store(out + row[:, None] * width + column[None, :], total.to(tl.float16))


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    left, right, out = (torch.ones(SIZE, device="cuda") for _ in range(3))
    a, b, c = (torch.ones(WIDTH, WIDTH, device="cuda", dtype=torch.float16) for _ in range(3))
    for _ in range(steps):
        scaled_sum[(triton.cdiv(SIZE, BLOCK),)](out, left, right, SIZE, BLOCK=BLOCK)
        product[(WIDTH // TILE, WIDTH // TILE)](c, a, b, WIDTH, TILE=TILE)
    torch.cuda.synchronize()
    print(json.dumps({"steps": steps}))


if __name__ == "__main__":
    main()
