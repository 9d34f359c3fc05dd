"""Blocks of PyTorch's allocator. In: a recording of programs/blocks.py, and what it printed. Out: at ten instants the
bytes of the trace's `block` lines that are live, against torch.cuda.memory_stats().

PyTorch 2.11's probe pytorch:malloc (NativeCachingAllocator::allocate) has the size that was asked for, which is what
requested_bytes counts; allocated_bytes counts blocks as they were cut, rounded up to 512 bytes and more.
"""

import json
from dataclasses import dataclass, field

from .frame import Failed, part
from .traces import lines

MARKER = "cudaMemGetInfo"


@dataclass
class Live:
    """The live blocks of one process at a time."""

    sizes: dict = field(default_factory=dict)
    allocs: int = 0
    frees: int = 0
    unsized: int = 0
    unknown: int = 0  # frees of blocks that are not live
    twice: int = 0  # allocations at an address that is live
    wrong_device: int = 0
    streams: set = field(default_factory=set)

    def add(self, line):
        pointer = line["pid"], line["ptr"]
        if line["op"] == "alloc":
            self.allocs += 1
            self.twice += pointer in self.sizes
            self.unsized += line.get("size") is None
            self.wrong_device += line.get("device") != 0
            self.sizes[pointer] = line.get("size") or 0
            self.streams.add(line.get("stream"))
        else:
            self.frees += 1
            self.unknown += pointer not in self.sizes
            self.sizes.pop(pointer, None)

    @property
    def bytes(self):
        return sum(self.sizes.values())


def at_markers(trace_lines):
    """The bytes and the number of live blocks at each outermost call of the marker; and the state at the end."""
    live, instants = Live(), []
    for line in trace_lines:
        if line.get("type") == "block":
            live.add(line)
        elif line.get("name") == MARKER and line.get("phase") == "B" and line["depth"] == 0:
            instants.append((live.bytes, len(live.sizes)))
    return instants, live


@part("blocks", "Blocks of PyTorch's allocator against torch.cuda.memory_stats()")
def blocks(machine, section):
    for options, name in [((), "without --stacks"), (("--stacks",), "with --stacks")]:
        with section.step(f"blocks.py, recorded {name}"):
            recording = machine.record("blocks", "blocks", options=options)
            printed = [json.loads(line) for line in recording.printed.splitlines()]
            instants, live = at_markers(lines(recording.trace))
            if not live.allocs:
                raise Failed("the trace has no `block` lines: this gpurec does not hook PyTorch's probes, or cannot")
            if len(instants) != len(printed):
                seen = f"{len(instants)} calls of {MARKER} are in the trace"
                raise Failed(f"{seen}, and the program printed {len(printed)} instants")
            compare(section, printed, instants)
            of_lines(section, live)
            recording.trace.unlink()


def compare(section, printed, instants):
    rows = []
    for line, (size, count) in zip(printed, instants):
        requested, allocated = size - line["requested_bytes"], size - line["allocated_bytes"]
        cells = [line["instant"], line["sizes"], count, line["tensors"], size, line["own"]]
        rows.append([*cells, line["requested_bytes"], requested, line["allocated_bytes"], allocated])
    head = ["instant", "sizes", "blocks", "tensors", "bytes in the trace", "of its tensors", "requested_bytes"]
    section.table([*head, "difference", "allocated_bytes", "difference"], rows)
    equal = sum(row[7] == 0 for row in rows)
    count = len(rows)
    section.check(equal == count, f"live blocks equal requested_bytes to the byte at {equal} of {count} instants")
    even = [row for row in rows if row[1] == "even"]
    equal = sum(row[9] == 0 for row in even)
    section.check(
        equal == len(even),
        f"and allocated_bytes too at {equal} of the {len(even)} where PyTorch has nothing to round",
    )


def of_lines(section, live):
    section.say(f"{live.allocs} allocations, {live.frees} frees, on the streams {sorted(map(str, live.streams))}.")
    section.check(not live.unsized, f"{live.unsized} allocations have no size")
    section.check(not live.unknown, f"{live.unknown} frees are of blocks that were not live")
    section.check(not live.twice, f"{live.twice} allocations are at an address that was live")
    section.check(not live.wrong_device, f"{live.wrong_device} allocations are not on device 0")
    section.check(len(live.streams - {None}) >= 2, f"{len(live.streams - {None})} streams are named, of two")
