"""Inference by a small transformer. In: a number of batches [40]. Out: a line of JSON: how many there were.

The comment at the end of a line names what the line does (launch, copy, sync, alloc), for sites.py; with `?` where it
depends on PyTorch's caches.
"""

import json
import sys

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention

WIDTH, HEADS, LAYERS = 512, 8, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.nn.LayerNorm(WIDTH)
        self.projection = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.output = torch.nn.Linear(WIDTH, WIDTH)
        self.between = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x):
        batch, length, _ = x.shape
        projected = self.projection(x)  # launch, alloc?, set?
        q, k, v = projected.view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v)  # launch, alloc?
        mixed = mixed.transpose(1, 2).reshape(batch, length, WIDTH)  # launch?, copy?, alloc?
        return self.output(mixed)  # launch, alloc?

    def forward(self, x):
        normal = self.before(x)  # launch, alloc?
        x = x + self.attention(normal)  # launch, alloc?
        normal = self.between(x)  # launch, alloc?
        wide = self.up(normal)  # launch, alloc?
        wide = gelu(wide)  # launch, alloc?
        narrow = self.down(wide)  # launch, alloc?
        return x + narrow  # launch, alloc?


def main():
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    model = torch.nn.Sequential(*(Block() for _ in range(LAYERS))).eval()
    model = model.to("cuda", torch.float16)  # copy, sync, alloc, launch?
    inputs = torch.randn(8, 128, WIDTH).half()
    best = 0
    with torch.inference_mode():
        for _ in range(batches):
            on_gpu = inputs.to("cuda")  # copy, sync, alloc?
            out = model(on_gpu)
            top = out.argmax(dim=-1)  # launch, alloc?
            on_host = top.cpu()  # copy, sync
            best = max(best, int(on_host.max()))
    torch.cuda.synchronize()  # sync
    print(json.dumps({"steps": batches, "best": best}))


if __name__ == "__main__":
    main()
