"""The frame of scripts/bench. In: parts, which measure. Out: tables of medians and a CSV of every sample.

A part is a generator with @part. It yields a Sample for each measurement, tool after tool in each round, so that what
else the machine does meets all of them; and a Figure for each ratio worth a look, with the target if there is one. The
samples of one key are its rounds: the third of each is of round three, and ratios are taken within a round. The parts
of --against (against.py) are made of the same, and their figures have an interval too.
"""

import csv
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import traceback
from collections import defaultdict
from dataclasses import dataclass
from math import comb
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = {}
SLOWER = 1.03  # --against: new ÷ old, surely above this, is a failure


class Failed(Exception):
    """Something could not be measured. The text says what to do about it."""


@dataclass
class Part:
    run: object
    text: str
    rounds: int


def part(name, text, rounds):
    def add(function):
        PARTS[name] = Part(function, text, rounds)
        return function

    return add


@dataclass
class Sample:
    case: str
    tool: str
    what: str  # a quantity with its unit: "ns a call"
    value: float

    def key(self):
        return self.case, self.tool, self.what


@dataclass
class Figure:
    """`of` alone, or over or less another: each names a sample as (case, tool, what)."""

    text: str
    of: tuple
    over: tuple = None
    less: tuple = None
    target: str = ""  # "<= 1.25"
    scale: float = 1

    def values(self, samples):
        values = samples.get(self.of, [])
        if self.over:
            return [one / other * self.scale for one, other in zip(values, samples.get(self.over, [])) if other]
        if self.less:
            return [(one - other) * self.scale for one, other in zip(values, samples.get(self.less, []))]
        return [value * self.scale for value in values]

    def reached(self, value):
        if not self.target:
            return ""
        sign, limit = self.target.split()
        limit = float(limit.replace("_", ""))
        return "yes" if (value <= limit if sign == "<=" else value >= limit) else "NO"


class Bench:
    """What a part is given: the binary, a folder of its own, how many rounds; and where it says what is missing."""

    def __init__(self, options, parts, gpurec):
        self.options, self.parts, self.gpurec = options, parts, gpurec
        self.built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "bench"
        self.name, self.folder, self.rounds = "", self.built, 0
        self.started, self.failures, self.rows, self.figures = [], [], [], []

    def say(self, text):
        print(f"bench: {self.name}: {text}" if self.name else f"bench: {text}", file=sys.stderr)

    def missing(self, text):
        """Part of a part could not be measured: the rest goes on, the exit status says so."""
        if (self.name, text) not in self.failures:
            self.failures.append((self.name, text))
            self.say(f"NOT MEASURED: {text}")

    def each_round(self):
        for number in range(self.rounds):
            self.say(f"round {number + 1} of {self.rounds}")
            yield number

    def in_turn(self, number, tools):
        """The tools of a round, each time in another order: what a tool leaves behind must not always meet the same."""
        return random.Random(number).sample(tools, len(tools))

    def start(self, command, **options):
        process = subprocess.Popen([str(word) for word in command], **options)
        self.started.append(process)
        return process

    def stop_all(self):
        """What a part has started ends with it. gpurec is told first: then its command does not stay behind."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.started.clear()

    def hand_over(self, path):
        """What is in the build folder belongs to who builds, also if sudo was typed."""
        if os.geteuid() == 0 and os.environ.get("SUDO_UID"):
            owner = f"{os.environ['SUDO_UID']}:{os.environ.get('SUDO_GID', '')}".rstrip(":")
            subprocess.run(["chown", "-Rh", owner, path], check=True)

    def run(self, name):
        self.name, self.folder = name, self.built / f"{name}.made"
        self.rounds = self.options.rounds or self.parts[name].rounds
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        samples, figures = defaultdict(list), []
        try:
            for one in self.parts[name].run(self):
                if isinstance(one, Figure):
                    figures.append(one)
                else:
                    samples[one.key()].append(one.value)
        except Failed as failed:
            self.missing(str(failed))
        except Exception as failed:
            # A fault of this program or of the machine: the other parts go on.
            traceback.print_exc()
            self.missing(f"{type(failed).__name__}: {failed}")
        finally:
            self.stop_all()
            if not self.options.keep:
                shutil.rmtree(self.folder, ignore_errors=True)
            # Also of a part that is interrupted.
            self.take(samples, figures)
        self.name = ""

    def take(self, samples, figures):
        self.rows += [(self.name, *key, values) for key, values in samples.items()]
        for figure in figures:
            values = figure.values(samples)
            if values:
                self.figures.append((self.name, figure, values))
            elif figure.target:
                self.missing(f"there is no value for: {figure.text}")

    def write(self):
        self.built.mkdir(parents=True, exist_ok=True)
        with open(self.built / "bench.csv", "w", newline="") as out:
            rows = csv.writer(out)
            rows.writerow(["part", "case", "tool", "what", "round", "value"])
            for name, case, tool, what, values in self.rows:
                rows.writerows([name, case, tool, what, i + 1, f"{value:.6g}"] for i, value in enumerate(values))
        with open(self.built / "figures.csv", "w", newline="") as out:
            rows = csv.writer(out)
            rows.writerow(["part", "figure", "median", "quartile1", "quartile3", "rounds", "target", "reached"])
            for name, figure, values in self.figures:
                middle, low, high = spread(values)
                numbers = [f"{value:.6g}" for value in (middle, low, high)]
                rows.writerow([name, figure.text, *numbers, len(values), figure.target, figure.reached(middle)])

        self.hand_over(self.built)

    def print(self):
        show(
            ["part", "case", "tool", "what", "median", "half of them within", "n"],
            [(name, case, tool, what, *numbers(values)) for name, case, tool, what, values in self.rows],
        )
        print()
        show(
            ["part", "figure", "median", "half of them within", "n", "target", "reached"],
            [
                (name, figure.text, *numbers(values), figure.target, figure.reached(spread(values)[0]))
                for name, figure, values in self.figures
            ],
        )
        self.print_failures()
        print(f"\nEvery sample: {self.built / 'bench.csv'}; the figures: {self.built / 'figures.csv'}")

    def print_failures(self):
        for name, text in self.failures:
            print(f"NOT MEASURED: {name}: {text}")

    def compared(self):
        """Of --against: each ratio with its interval, and whether the new binary is surely slower."""
        medians = {tuple(key): statistics.median(values) for *key, values in self.rows}
        for name, figure, values in self.figures:
            low, high = interval(values)
            yield {
                "part": name,
                "figure": figure.text,
                "old": medians[name, *figure.over],
                "new": medians[name, *figure.of],
                "ratio": statistics.median(values),
                "low": low,
                "high": high,
                "pairs": len(values),
                "slower": low > SLOWER,
            }

    def print_compared(self, as_json):
        compared = list(self.compared())
        if as_json:
            failures = [{"part": name, "reason": text} for name, text in self.failures]
            print(json.dumps({"figures": compared, "not_measured": failures}, indent=1))
            return
        ratios = ["ratio", "low", "high"]
        show(
            ["part", "figure", "old", "new", "new ÷ old", "95 % from", "to", "pairs", "slower"],
            [
                (one["part"], one["figure"], number(one["old"]), number(one["new"]))
                + tuple(f"{one[key]:.3f}" for key in ratios)
                + (one["pairs"], f"YES, by more than {SLOWER}" if one["slower"] else "no")
                for one in compared
            ],
        )
        self.print_failures()


def spread(values):
    """Median and quartiles."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, low, high


def interval(values):
    """The narrowest pair of ranks between which the median of all such values lies in at least 95 of 100 cases, whatever
    their distribution: outside the k-th from either end it lies as rarely as a coin falls the same way."""
    count, outside, rank = len(values), 0, -1
    while rank + 1 < count // 2 and outside + comb(count, rank + 1) <= 0.025 * 2**count:
        rank += 1
        outside += comb(count, rank)
    ordered, rank = sorted(values), max(rank, 0)
    return ordered[rank], ordered[count - 1 - rank]


def number(value):
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "_")
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def numbers(values):
    middle, low, high = spread(values)
    return number(middle), f"{number(low)} .. {number(high)}", str(len(values))


def show(head, rows):
    left = {"part", "case", "tool", "what", "figure", "target", "reached", "slower"}
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = (str(c).ljust(w) if name in left else str(c).rjust(w) for c, w, name in zip(row, widths, head))
        print("  ".join(cells).rstrip())
