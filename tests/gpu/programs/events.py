"""Kernels of known order on one stream, with an event after each. In: how many [200]. Out: a line of JSON: the time
from each event to the next in ms, as cuEventElapsedTime says, and the text that is in the names of these kernels
alone.

The first kernel runs until all are launched, so the GPU never waits for the host between two events.
"""

import json
import sys

import torch

FIRST, SHORT, LONG = 200_000_000, 20_000, 4_000_000  # cycles


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
    for event in events:
        event.record()  # makes it
    torch.cuda.synchronize()
    torch.cuda._sleep(FIRST)
    for number, event in enumerate(events):
        torch.cuda._sleep(LONG if number % 4 == 3 else SHORT * (number % 4 + 1))
        event.record()
    torch.cuda.synchronize()
    elapsed = [one.elapsed_time(other) for one, other in zip(events, events[1:])]
    print(json.dumps({"kernel": "spin_kernel", "first": 1, "ms": elapsed}))


if __name__ == "__main__":
    main()
