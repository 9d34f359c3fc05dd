"""Trains, then with torch.profiler for as many steps, then without. In: a number of steps for each [20]. Out: a line
of JSON: how many records of each kernel, copy and set the profiler has (`records`).
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import training
from torch.profiler import ProfilerActivity, profile

CATEGORIES = ["kernel", "gpu_memcpy", "gpu_memset"]


def counted(profiler):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") in CATEGORIES)


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.manual_seed(0)
    model = training.net().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(256, training.WIDTH, device="cuda")
    target = torch.zeros_like(batch)

    def work():
        for _ in range(steps):
            training.step(model, optimizer, batch, target)
        torch.cuda.synchronize()

    work()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    work()
    print(json.dumps({"steps": steps, "records": counted(profiler)}))


if __name__ == "__main__":
    main()
