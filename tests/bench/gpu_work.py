"""Work for a GPU, by PyTorch. In: the length of a loop as a share of the usual one (1); which loops
(launch,inference,training,cnn); the number of steps by loop, as a JSON object (otherwise as many as take that long);
and lines on standard input: "run WORK", "profile WORK" (torch.profiler) or "profile-gpu WORK" (the same, without
operators). Out: a JSON object a line; the first says what there is, each other one the seconds that a loop took, from
synchronised to synchronised, warm. Run by gpu.py and gpu_launched.py with the Python that has torch; needs nothing else
of this tree.
"""

import itertools
import json
import os
import sys
import time

# Before any thread starts. gpurec, which may be the parent, keeps its own CPUs.
if os.environ.get("GPUREC_BENCH_CPUS"):
    os.sched_setaffinity(0, {int(cpu) for cpu in os.environ["GPUREC_BENCH_CPUS"].split(",")})

# Lines on standard output are ours alone: whatever else prints there, also while torch is loaded, prints elsewhere.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import torch  # noqa: E402

# What a loop should take with nothing attached. torch.profiler needs ten times as long afterwards.
SECONDS = {"launch": 0.15, "inference": 0.3, "training": 0.3, "cnn": 0.3, "graphed": 0.15}


def launch():
    """A tiny kernel, launched again and again: what PyTorch asks of both libraries for it is about ten calls."""
    numbers = torch.zeros(1024, device="cuda")

    def step():
        numbers.add_(1.0)

    return step


def encoder(width, heads, layers, **kind):
    kind = {"dropout": 0.0, "batch_first": True, "device": "cuda", **kind}
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, **kind)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def inference():
    """256 sequences of 256 at once: the GPU has work for far longer than the host needs for the launches, also on a
    host that is slow at them."""
    model = encoder(1024, 16, 6, dtype=torch.float16).eval()
    batch = torch.randn(256, 256, 1024, device="cuda", dtype=torch.float16)

    def step():
        with torch.inference_mode():
            model(batch)

    return step


def training():
    model = encoder(512, 8, 4)
    batch = torch.randn(32, 128, 512, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        optimizer.zero_grad(set_to_none=True)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()

    return step


def cnn():
    """A small convolutional net, as many train it: each batch comes from the host, each step waits for its loss."""
    layers = []
    for before, after in [(3, 32), (32, 64), (64, 128)]:
        layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
        layers += [torch.nn.MaxPool2d(2)]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128 * 16, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = [torch.randn(64, 3, 32, 32).pin_memory() for _ in range(4)]
    labels = [torch.randint(10, (64,)).pin_memory() for _ in range(4)]
    batches = itertools.cycle(zip(images, labels))

    def step():
        image, label = (one.to("cuda", non_blocking=True) for one in next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(image), label)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def graphed():
    """A graph of a hundred small kernels."""
    numbers = torch.zeros(1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        numbers.add_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            numbers.add_(1.0)
    return graph.replay


def timed(step, times):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def calibrated(step, seconds):
    """The number of steps that take about that long."""
    timed(step, 20)
    times = 5
    while (took := timed(step, times)) < seconds / 4:
        times *= 2
    return max(3, round(times * seconds / took))


def profiled(step, times, *kinds):
    """As a user has it on for a part of the run. What it does with its records afterwards is not in the time."""
    with torch.profiler.profile(activities=kinds):
        return timed(step, times)


def main():
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    share, names, given = [*sys.argv[1:], *["1", "launch,inference,training,cnn", "{}"][len(sys.argv) - 1 :]]
    works = {work.__name__: work for work in (launch, inference, training, cnn, graphed)}
    steps = {name: works[name]() for name in names.split(",")}
    given = json.loads(given)
    times = {name: given.get(name) or calibrated(step, float(share) * SECONDS[name]) for name, step in steps.items()}
    about = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "steps": times}
    print(json.dumps(about), file=ANSWERS)
    cpu, cuda = torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA
    kinds = {"profile": [cpu, cuda], "profile-gpu": [cuda]}
    for line in sys.stdin:
        how, name = line.split()
        step, count = steps[name], times[name]
        took = profiled(step, count, *kinds[how]) if how in kinds else timed(step, count)
        print(json.dumps({"seconds": took}), file=ANSWERS)


if __name__ == "__main__":
    main()
