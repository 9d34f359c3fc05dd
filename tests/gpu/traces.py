"""Traces, read line by line. In: the path of a .jsonl. Out: lines, stacks, and which calls have which stack. Pure, but
for reading the file; what the figures should be is not known here.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


def lines(path):
    with open(path, encoding="utf-8", errors="replace") as text:
        for line in text:
            try:
                yield json.loads(line)
            except ValueError:
                return  # the last line of a recording that was killed


@dataclass
class Stack:
    frames: list
    cut: bool

    def python(self):
        return [frame for frame in self.frames if frame["kind"] == "python"]

    def native(self):
        return [frame for frame in self.frames if frame["kind"] == "native"]

    def modules(self):
        return [module_of(frame) for frame in self.native()]

    def route(self):
        """The libraries that the call came through, and at last Python: the way out of libtorch."""
        names = ["Python" if frame["kind"] == "python" else module_of(frame) for frame in self.frames]
        apart = [name for at, name in enumerate(names) if at == 0 or name != names[at - 1]]
        until = apart.index("Python") + 1 if "Python" in apart else len(apart)
        return " < ".join(apart[:until]) + (" (cut)" if self.cut else "")

    def line_in(self, program):
        """Of the innermost frame of that file."""
        path = str(program)
        return next((frame.get("line") for frame in self.python() if frame["file"] == path), None)

    def native_end(self):
        """The outermost native frame: where the native part ends."""
        native = self.native()
        return text_of(native[-1]) if native else "no native frame"

    def reaches_python_through(self, prefixes):
        return bool(self.python()) and any(module.startswith(prefixes) for module in self.modules())

    def text(self, most=40):
        return "\n".join(text_of(frame) for frame in self.frames[:most])


def module_of(frame):
    return Path(frame.get("module") or "").name


def text_of(frame):
    if frame["kind"] == "python":
        return f"{Path(frame['file']).name}:{frame.get('line')} {frame['function']}"
    function = frame.get("function")
    place = function or frame.get("offset") or "?"
    place = place if len(place) <= 120 else f"{place[:117]}..."
    return f"{place} ({module_of(frame)})"


@dataclass
class Calls:
    """The calls of a trace that bear the number of a stack."""

    stacks: dict = field(default_factory=dict)
    by_stack: Counter = field(default_factory=Counter)
    by_name: Counter = field(default_factory=Counter)
    # Outermost calls of the same functions without one.
    without: Counter = field(default_factory=Counter)
    blocks: Counter = field(default_factory=Counter)
    end: dict = field(default_factory=dict)

    @property
    def total(self):
        return sum(self.by_stack.values())

    def share(self, fits):
        """How many calls, and how many stacks, have a stack that fits."""
        fitting = [number for number in self.by_stack if number in self.stacks and fits(self.stacks[number])]
        return sum(self.by_stack[number] for number in fitting), len(fitting)

    def count(self, of, fits=lambda _: True):
        """Calls by what `of` makes of their stack, the most frequent first."""
        counted = Counter()
        for number, calls in self.by_stack.items():
            if number in self.stacks and fits(self.stacks[number]):
                counted[of(self.stacks[number])] += calls
        return counted.most_common()


def calls(trace_lines):
    found, without = Calls(), Counter()
    for line in trace_lines:
        kind = line.get("type")
        if kind == "stack":
            found.stacks[line["stack"]] = Stack(line["frames"], line.get("cut", False))
        elif kind == "userspace" and line.get("phase") == "B":
            if "stack" in line:
                found.by_stack[line["stack"]] += 1
                found.by_name[line["name"]] += 1
            elif not line["depth"]:
                without[line["name"]] += 1
        elif kind == "block" and "stack" in line:
            found.blocks[line["stack"]] += 1
        elif kind == "end":
            found.end = line
    found.without = Counter({name: count for name, count in without.items() if name in found.by_name})
    return found


def failures(trace_lines):
    """The ends of outermost calls that failed."""
    return [line for line in trace_lines if line.get("phase") == "E" and line.get("error")]
