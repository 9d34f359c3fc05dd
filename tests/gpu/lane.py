"""What --gpu records, against torch.profiler. In: programs that do the same in each run, recorded by each in turn. Out:
for each name of a kernel, copy or set, how many and how long; every difference; whether the account of gpurec's first
recording adds up (account.py).
"""

import statistics
import time
from dataclasses import dataclass, field

from . import profiles
from .account import of_account
from .frame import LONGEST, Failed, command_of, part, run, tail
from .traces import lines

WORKS = {
    "a CNN, training": ("cnn", "60"),
    "a transformer, inference": ("inference", "100"),
    "a CUDA graph": ("graphed", "500"),
    "Triton": ("with_triton", "500"),
    "CuPy": ("with_cupy", "300"),
    "JAX": ("with_jax", "200"),
}
ROUNDS = 3
SECONDS = 330  # no round begins after that
NEAR = 0.01  # of the total duration
SHOWN = 12


@dataclass
class Sides:
    """What each side has seen, round by round."""

    lane: list = field(default_factory=list)
    profiler: list = field(default_factory=list)


@part("lane", "The lane (--gpu) against torch.profiler, in alternating runs")
def lane(machine, section):
    section.say(
        "Both run profiled.py with the same program; torch.profiler records what runs on the GPU (CUDA activity only), "
        "from before CUDA is initialised. Names are compared without blanks, and backslashes as slashes, since Kineto "
        "replaces these; both demangle. Copies are compared by direction: Kineto also says which memory. How long they "
        "take depends on the host's memory, so durations are those of kernels."
    )
    sides, began = {name: Sides() for name in WORKS}, time.monotonic()
    left = dict(WORKS)
    for number in range(ROUNDS):
        if number and time.monotonic() - began > SECONDS:
            section.say(f"The time was over after {number} rounds.")
            break
        with section.step(f"Recording, round {number + 1}"):
            for name, program in list(left.items()):
                try:
                    one_round(machine, section, number, name, program, sides[name])
                except Failed as failed:
                    del left[name]
                    section.not_measured(f"{name}: {failed}")
    for name, seen in sides.items():
        if seen.lane and seen.profiler:
            with section.step(name):
                compared(section, name, seen)


def one_round(machine, section, number, name, program, seen):
    """Each side comes first in every other round."""
    ways = [with_lane, with_profiler]
    for way in ways if number % 2 == 0 else reversed(ways):
        way(machine, section, name, program, seen)


def with_lane(machine, section, name, program, seen):
    recording = machine.record("lane", "profiled", "-", *program, options=("--gpu",), loud=True)
    try:
        seen.lane.append(profiles.of_trace(lines(recording.trace), "lane"))
        if len(seen.lane) == 1:
            of_account(section, name, recording.trace)
            if not seen.lane[0]:
                raise Failed(f"the trace has no `gpu` lines: {recording.said.strip()[:500]}")
    finally:
        recording.trace.unlink()


def with_profiler(machine, section, name, program, seen):
    export = machine.made / "export.json"
    export.unlink(missing_ok=True)
    done = run(command_of("profiled", export, *program), LONGEST)
    if done.returncode or not export.exists():
        raise Failed(f"{program[0]}.py, under torch.profiler, ended with {done.returncode}: {tail(done)}")
    seen.profiler.append(profiles.of_export(export))
    export.unlink()
    if not seen.profiler[-1]:
        raise Failed("torch.profiler exports nothing that ran on the GPU")


# --- comparison --------------------------------------------------------------------------------------------------


def compared(section, name, seen):
    """Counts must be equal in each round, and the kernels' total durations within 1 % in the median of the rounds."""
    table, ratios, differing = [], [], []
    for number, (ours, theirs) in enumerate(zip(seen.lane, seen.profiler), 1):
        found, _ = profiles.rows(ours, theirs)
        differing.append([row for row in found if row.ours != row.theirs])
        sides = [kernels_ms(works) for works in (ours, theirs)]
        ratios.append(sides[0] / sides[1])
        others = [profiles.total(works) / 1e3 - ms for works, ms in zip((ours, theirs), sides)]
        cells = [*(f"{ms:.3f}" for ms in sides), f"{ratios[-1]:.4f}", *(f"{ms:.3f}" for ms in others)]
        table.append([number, len(ours), len(theirs), len(found), len(differing[-1]), *cells])
    head = ["round", "records, gpurec", "torch.profiler", "names", "counts that differ"]
    head += ["ms of kernels, gpurec", "torch.profiler", "ratio", "ms of copies and sets, gpurec", "torch.profiler"]
    section.table(head, table)
    unlike = sum(map(len, differing))
    section.check(not unlike, f"{name}: names and counts are equal in {len(table)} rounds; {unlike} differ")
    middle = statistics.median(ratios)
    noise = [spread([kernels_ms(works) for works in side]) for side in (seen.lane, seen.profiler)]
    section.check(
        abs(middle - 1) <= NEAR,
        f"{name}: the kernels' durations together are within 1 %: gpurec ÷ torch.profiler is {middle:.4f} in the "
        f"median of the rounds. From round to round they differ by {noise[0]:.2%} with gpurec, {noise[1]:.2%} without.",
    )
    differences(section, name, seen, differing)


def kernels_ms(works):
    return profiles.total(work for work in works if work.kind == "kernel") / 1e3


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def differences(section, name, seen, differing):
    for number, found in enumerate(differing, 1):
        if found:
            section.say(f"Counts that differ in round {number}:")
            section.table(
                ["kind", "name", "gpurec", "torch.profiler"],
                [[row.kind, short(row.name), row.ours, row.theirs] for row in found[:SHOWN]],
            )
    for side, works in [("gpurec", seen.lane), ("torch.profiler", seen.profiler)]:
        first = profiles.counts(works[0])
        unlike = [number for number, one in enumerate(works, 1) if profiles.counts(one) != first]
        if unlike:
            section.say(f"{side} itself has other counts in the rounds {unlike} than in round 1.")
    found, spelled = profiles.rows(seen.lane[0], seen.profiler[0])
    for one, other in spelled[:SHOWN]:
        section.say(f"Another spelling: `{short(one)}` and `{short(other)}`.")
    section.say("The names that took longest, of round 1:")
    section.table(
        ["kind", "name", "gpurec", "torch.profiler", "us each, gpurec", "torch.profiler", "ratio"],
        [
            [
                row.kind,
                short(row.name),
                row.ours,
                row.theirs,
                each(row.our_us, row.ours),
                each(row.their_us, row.theirs),
            ]
            + [f"{row.ratio:.4f}" if row.ratio else "-"]
            for row in found[:SHOWN]
        ],
    )
    per_name = [row for row in found if row.kind == "kernel" and row.ratio and abs(row.ratio - 1) > NEAR]
    time_of = sum(row.their_us for row in per_name)
    share = time_of / 1e3 / kernels_ms(seen.profiler[0])
    section.say(
        f"{len(per_name)} kernels differ by more than 1 % in round 1; they have {share:.1%} of the kernels' time."
    )


def each(us, count):
    return f"{us / count:.3f}" if count else "-"


def short(name):
    return name if len(name) <= 90 else f"{name[:60]}...{name[-27:]}"
