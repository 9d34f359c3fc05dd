"""What gpurec records while torch.profiler runs in the program: by the tap, and with --gpu, where both want CUPTI. In:
a trace and the profiler's export of the same run. Out: every record that only one of them has, and by how much times
differ; whether the profiler has all of its own records.
"""

import json
from collections import Counter

from . import profiles
from .account import HEAD, row
from .frame import Failed, part
from .profiles import quantile
from .running import recorded_while_running
from .traces import lines

PROGRAM = ["cnn", "40"]
RESOLUTION = 1.0  # µs, of an export for Chrome


@part("tap", "The tap, and --gpu beside torch.profiler")
def tap(machine, section):
    with section.step("Launched with --gpu=tap"):
        export = machine.made / "export.json"
        recording = machine.record("tap", "profiled", export, *PROGRAM, options=("--gpu=tap",))
        same(section, recording.trace, export)
    with section.step("Attached with --pid before the profiler begins"):
        export, trace = machine.made / "attached.json", machine.made / "attached.jsonl"
        recorded_while_running(machine, trace, [], "profiled", export, "--wait", *PROGRAM)
        same(section, trace, export)
    with section.step("--gpu, and torch.profiler from the start"):
        from_the_start(machine, section)
    with section.step("--gpu, and torch.profiler in the middle"):
        in_the_middle(machine, section)


# --- the tap -----------------------------------------------------------------------------------------------------


def same(section, trace, export):
    """The trace and the export have the same records."""
    found = list(lines(trace))
    works, theirs = profiles.of_trace(found), profiles.of_export(export)
    end = found[-1] if found and found[-1].get("type") == "end" else {}
    for path in (trace, export):
        path.unlink()
    if not theirs:
        raise Failed("torch.profiler exports nothing that ran on the GPU")
    if end.get("gpu"):
        section.table(HEAD, [row("the run", end["gpu"])])
    for holds, text in judged(works, theirs):
        section.check(holds, text)
    spread(section, profiles.paired(works, theirs))


def judged(ours, theirs):
    pairs = profiles.paired(ours, theirs)
    sources = f"{len(ours)} `gpu` lines, {len(theirs)} records exported"
    one, other = len(pairs.only_ours), len(pairs.only_theirs)
    named = "; ".join(
        some_of(side, works) for side, works in [("gpurec", pairs.only_ours), ("export", pairs.only_theirs)]
    )
    yield not one and not other, f"{sources}: {one} and {other} are in one alone. {named if one or other else ''}"
    errors = pairs.duration_errors()
    far = [error for error in errors if error > RESOLUTION]
    most = f"{errors[-1]:.3f}" if errors else "-"
    yield (
        bool(errors) and not far,
        f"durations: {len(far)} of {len(errors)} differ by more than 1 us, at most by {most} us",
    )


def some_of(side, works):
    counted = Counter((work.kind, work.name[:60]) for work in works)
    return f"only {side}: " + (", ".join(f"{count} × {name}" for (_, name), count in counted.most_common(4)) or "none")


def spread(section, pairs):
    shares = [0.5, 0.9, 0.99, 1]
    section.table(
        ["us that they differ by", "half within", "90 %", "99 %", "most"],
        [
            [what, *(f"{quantile(errors, share):.3f}" if errors else "-" for share in shares)]
            for what, errors in [("duration", pairs.duration_errors()), ("start, clocks aside", pairs.start_errors())]
        ],
    )
    for one, other in pairs.spelled[:5]:
        section.say(f"Another spelling: `{one[:120]}` and `{other[:120]}`.")


# --- both want CUPTI ---------------------------------------------------------------------------------------------


def from_the_start(machine, section):
    """The program's profiler begins before CUDA is initialised: in one run without gpurec, in one with it."""
    exports = [machine.made / "without.json", machine.made / "with.json"]
    machine.plain("profiled", exports[0], *PROGRAM)
    recording = machine.record("both", "profiled", exports[1], *PROGRAM, options=("--gpu",), loud=True)
    without, beside = (profiles.counts(profiles.of_export(export)) for export in exports)
    for export in exports:
        export.unlink()
    kept(section, without, beside)
    shown(section, recording)


def in_the_middle(machine, section):
    """The profiler begins when gpurec's library has had CUPTI for a while."""
    without = Counter(json.loads(machine.plain("taken"))["records"])
    recording = machine.record("both", "taken", options=("--gpu",), loud=True)
    kept(section, without, Counter(json.loads(recording.printed)["records"]))
    shown(section, recording)


def kept(section, without, beside):
    """The profiler must lose no record."""
    lost, more = without - beside, beside - without
    text = f"torch.profiler has {sum(beside.values())} records beside gpurec, {sum(without.values())} alone"
    differing = ", ".join(f"{count} × {str(name)[:60]}" for name, count in (lost + more).most_common(4))
    section.check(bool(beside) and not lost and not more, f"{text}. {differing}")


def shown(section, recording):
    found = list(lines(recording.trace))
    recording.trace.unlink()
    end = found[-1] if found and found[-1].get("type") == "end" else {}
    by_source = Counter(line["source"] for line in found if line.get("type") == "gpu")
    section.say("gpurec says:")
    section.block("\n".join(recording.said.strip().splitlines()[:12]) or "nothing")
    section.say(f"`gpu` lines by source: {dict(by_source) or 'none'}. Complete: {end.get('complete')}.")
    if not end.get("gpu"):
        section.check(False, "the trace has no account of GPU work")
        return
    account = end["gpu"]
    section.table(HEAD, [row("the run", account)])
    reasons = {reason["code"] for reason in account["reasons"]}
    missing = account["launches"] - account["delivered"]
    named = reasons & {"other_client", "no_lane"}
    section.check(
        missing <= 0 or bool(named), f"{missing} launches have no kernel; the reasons name {named or 'nothing'}"
    )
