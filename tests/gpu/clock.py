"""Whether GPU work and calls are on one clock. In: recordings with --gpu. Out: how many kernels start before the call
that submitted them, how many end after a wait for them has returned, and by how much; and the times between ends of
kernels against those between CUDA events that were recorded after them.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field

from .frame import Failed, part
from .profiles import quantile
from .traces import lines

WORKS = [("cnn", "60"), ("inference", "60"), ("graphed", "300"), ("streams",)]
EVENTS_US = 1.0  # cuEventElapsedTime: about half a microsecond at each end
DEVICE_WAITS = re.compile(r"(cudaDeviceSynchronize|cuCtxSynchronize)")
STREAM_WAITS = re.compile(r"(cudaStreamSynchronize|cuStreamSynchronize)")
EVENT_WAITS = re.compile(r"(cudaEventSynchronize|cuEventSynchronize)")
EVENT_RECORDS = re.compile(r"(cudaEventRecord|cuEventRecord)")


@dataclass
class Work:
    begin: int  # the event_id of its call
    start: int  # ns
    end: int
    kind: str
    name: str


@dataclass
class Call:
    pid: int
    name: str
    began: int
    args: dict
    stream: str
    ended: int = None


@dataclass
class Seen:
    works: list = field(default_factory=list)
    calls: dict = field(default_factory=dict)
    unmatched: int = 0


def ns(seconds):
    return round(seconds * 1e9)


def seen(trace_lines):
    found = Seen()
    for line in trace_lines:
        kind = line.get("type")
        if kind == "userspace" and line["phase"] == "B":
            args = line.get("args") or {}
            stream = line.get("stream") or args.get("hStream") or args.get("stream")
            found.calls[line["event_id"]] = Call(line["pid"], line["name"], ns(line["ts"]), args, stream)
        elif kind == "userspace" and line["phase"] == "E":
            call = found.calls.get(line["begin"])
            if call:
                call.ended = ns(line["ts"])
        elif kind == "gpu":
            start = ns(line["ts"])
            work = Work(line["begin"], start, start + round(line["duration_us"] * 1e3), line["kind"], line["name"])
            found.works.append(work)
            found.unmatched += work.begin is None
    return found


def early(found):
    """By how many ns each work starts after its call began; negative: before."""
    return sorted(work.start - found.calls[work.begin].began for work in found.works if work.begin in found.calls)


def late(found):
    """For each work: by how many ns it ended before the first wait that covers it returned."""
    by_call, left, recorded, spans = defaultdict(list), [], {}, []
    for work in found.works:
        by_call[work.begin].append(work)
    for time, what, number in instants(found, by_call):
        call = found.calls[number]
        if what == "submitted":
            left.append((call, by_call[number]))
        elif what == "recorded":
            recorded[call.pid, event_of(call)] = (call.began, call.stream)
        else:
            covered = [one for one in left if covers(call, one[0], recorded)]
            left = [one for one in left if not covers(call, one[0], recorded)]
            spans += [time - work.end for _, works in covered for work in works]
    return sorted(spans)


def instants(found, by_call):
    """Calls that submit work or record an event, and returns of waits, in order."""
    order = []
    for number, call in found.calls.items():
        if call.ended is None:
            continue
        if number in by_call:
            order.append((call.ended, "submitted", number))
        elif EVENT_RECORDS.match(call.name):
            order.append((call.ended, "recorded", number))
        elif any(waits.match(call.name) for waits in (DEVICE_WAITS, STREAM_WAITS, EVENT_WAITS)):
            order.append((call.ended, "waited", number))
    return sorted(order)


def event_of(call):
    return call.args.get("hEvent") or call.args.get("event")


def covers(wait, call, recorded):
    """Whether the wait is for work of that call: submitted before the wait began, or before the event was recorded."""
    if call.pid != wait.pid:
        return False
    if DEVICE_WAITS.match(wait.name):
        return call.ended <= wait.began
    if STREAM_WAITS.match(wait.name):
        return call.ended <= wait.began and call.stream is not None and call.stream == wait.stream
    until, stream = recorded.get((wait.pid, event_of(wait)), (0, None))
    return call.ended <= until and call.stream is not None and call.stream == stream


# --- the part ----------------------------------------------------------------------------------------------------


@part("clock", "One clock: GPU work against calls and against CUDA events")
def clock(machine, section):
    for name, *words in WORKS:
        with section.step(f"{name}.py"):
            recording = machine.record("clock", name, *words, options=("--gpu",))
            found = seen(lines(recording.trace))
            recording.trace.unlink()
            if not found.works:
                raise Failed("the trace has no `gpu` lines")
            section.say(f"{len(found.works)} pieces of work, {found.unmatched} without a call.")
            spans(section, "start after their call began", early(found))
            spans(section, "ended before the first wait for them returned", late(found))
    with section.step("events.py: ends of kernels against CUDA events"):
        recording = machine.record("events", "events", options=("--gpu",))
        found = seen(lines(recording.trace))
        recording.trace.unlink()
        events(section, found, json.loads(recording.printed))


def spans(section, what, ordered):
    """Prints and checks spans, none of which may be negative."""
    if not ordered:
        section.not_measured(f"no work of which it is known whether it {what}")
        return
    wrong = [-span for span in reversed(ordered) if span < 0]
    shares = [0, 0.01, 0.5, 0.99, 1]
    section.table(
        ["us", "least", "1 %", "median", "99 %", "most"],
        [[what, *(f"{quantile(ordered, share) / 1e3:.3f}" for share in shares)]],
    )
    far = (
        f"; by at most {max(wrong) / 1e3:.3f} us, in the median by {quantile(wrong, 0.5) / 1e3:.3f} us" if wrong else ""
    )
    share = 100 * len(wrong) / len(ordered)
    section.check(not wrong, f"{len(ordered) - len(wrong)} of {len(ordered)} {what}; {share:.3f} % do not{far}")


def between(found, printed):
    """(the span between the ends of two kernels, the same between their events), in us."""
    works = sorted((work for work in found.works if printed["kernel"] in work.name), key=lambda work: work.start)
    works = works[printed["first"] :]
    if len(works) != len(printed["ms"]) + 1:
        raise Failed(f"the trace has {len(works)} of the kernels, the program launched {len(printed['ms']) + 1}")
    ends = [(other.end - one.end) / 1e3 for one, other in zip(works, works[1:])]
    return list(zip(ends, (ms * 1e3 for ms in printed["ms"])))


def events(section, found, printed):
    pairs = between(found, printed)
    errors = sorted(abs(one - other) for one, other in pairs)
    ours, theirs = (sum(side) for side in zip(*pairs))
    shares = [0.5, 0.9, 0.99, 1]
    section.table(
        ["spans between two events", "half differ by at most", "90 %", "99 %", "most"],
        [[len(pairs), *(f"{quantile(errors, share):.3f} us" for share in shares)]],
    )
    section.say(f"Of all together: {ours:.1f} us in the trace, {theirs:.1f} us by events, ratio {ours / theirs:.6f}.")
    near = sum(error <= EVENTS_US for error in errors)
    section.check(
        quantile(errors, 0.5) <= EVENTS_US,
        f"{near} of {len(errors)} differ by at most {EVENTS_US:g} us, half of them at least",
    )
