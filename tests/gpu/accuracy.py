"""Whether figures are right on real software. In: recordings of programs that know what they did. Out: for failed
calls, leaks, devices, contexts and waste, what the trace says against what the program says; and what `report waste`
finds in other programs, for a person to judge.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from .frame import PROGRAMS, Failed, part
from .traces import lines

WASTE = ["inference", "training", "cnn"]


@part("accuracy", "Accuracy: failed calls, leaks, devices and contexts, waste")
def accuracy(machine, section):
    for how, expected in [("handled", 0), ("not-handled", 1)]:
        with section.step(f"memory_out.py {how}: failed calls and the first failure"):
            failed_calls(machine, section, how, expected)
    with section.step("leaks.py: leaked against held at exit"):
        leaks(machine, section, libcudart())
    with section.step("contexts.py: two contexts, four streams, two threads"):
        contexts(machine, section)
    with section.step("streams.py: PyTorch on four streams from two threads"):
        streams(machine, section)
    for words in [(), ("tiny",)]:
        with section.step(f"wasteful.py {' '.join(words)}: the patterns that it has"):
            wasteful(machine, section, words)
    for name in WASTE:
        with section.step(f"report waste of {name}.py"):
            recording = machine.record(name, name)
            section.block(machine.read("report", "waste", "--width", "160", recording.trace))
            recording.trace.unlink()


# --- failed calls ------------------------------------------------------------------------------------------------


def failed_calls(machine, section, how, expected):
    program = PROGRAMS / "memory_out.py"
    recording = machine.record("memory_out", "memory_out", how, expected=expected)
    report = json.loads(machine.read("report", "errors", "--json", recording.trace))
    printed = json.loads(recording.printed.splitlines()[0])
    section.say(f"It printed `{json.dumps(printed)}` and ended with {recording.status}, as it does by itself.")
    keys = ["function", "error", "count", "asked_bytes", "call_site", "cause", "cause_error"]
    rows = report["errors"]
    section.table(keys, [[row.get(key) for key in keys] for row in rows])
    fails = [number for number, line in enumerate(program.read_text().splitlines(), 1) if line.endswith("# fails")]
    for holds, text in judged_failures(report, printed, f"{program.name}:{fails[0]} "):
        section.check(holds, text)


def judged_failures(report, printed, site):
    """PyTorch asks once, gives back what it has cached, and asks again."""
    expected = printed["num_ooms"] + printed["num_alloc_retries"]
    rows = [row for row in report["errors"] if row["function"] == "cudaMalloc"]
    count, asked = sum(row["count"] for row in rows), [row["asked_bytes"] for row in rows]
    first = [call for call in report.get("before_first") or [] if call["function"] == "cudaMalloc"][-1:]
    sites = [row["call_site"] for row in rows]
    yield count == expected, f"cudaMalloc failed {count} times, PyTorch counted {expected}"
    yield asked == [printed["block"]], f"it was asked for {asked} bytes, by the program for {printed['block']}"
    right = bool(sites) and all((text or "").startswith(site) for text in sites)
    yield right, f"from {', '.join(map(str, sites))}; it fails at {site}"
    named = first[0]["result"] if first else None
    yield named == "cudaErrorMemoryAllocation", f"the first failure is a cudaMalloc with {named}"
    yield report["failed_calls"] == count, f"{report['failed_calls']} calls failed in all, {count} of them cudaMalloc"


# --- leaks -------------------------------------------------------------------------------------------------------


def libcudart():
    """The CUDA runtime that PyTorch's wheel brings, or that of a toolkit."""
    places = [Path(folder) / "nvidia" for folder in sys.path if folder]
    found = [path for place in places for path in sorted(place.glob("*/lib/libcudart.so.1[0-9]*"))]
    for place in ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu"]:
        found += sorted(Path(place).glob("libcudart.so.1[0-9]*"))
    if not found:
        raise Failed("there is no libcudart.so below the folders of Python's packages or in /usr/local/cuda/lib64")
    return found[0]


def leaks(machine, section, library):
    recording = machine.record("leaks", "leaks", library)
    printed = json.loads(recording.printed)
    report = json.loads(machine.read("report", "leaks", "--json", recording.trace))
    section.say(f"With {library.name}. Groups that the report has:")
    keys = ["kind", "function", "count", "bytes", "call_site"]
    section.table(keys, [[row.get(key) for key in keys] for row in report["groups"]])
    text = (PROGRAMS / "leaks.py").read_text().splitlines()
    line = next(number for number, line in enumerate(text, 1) if line.endswith("# leak"))
    for holds, said in judged_leaks(report, printed, f"leaks.py:{line} "):
        section.check(holds, said)
    known = {int(pointer, 16) for kind in printed.values() for pointer, _ in kind}
    others = Counter(row["function"] for row in report["allocations"] if int(row["ptr"], 16) not in known)
    section.say(f"Held too, by libraries: {dict(others) or 'nothing'}.")


def judged_leaks(report, printed, site):
    named = {int(row["ptr"], 16): row for row in report["allocations"]}
    for kind, word in [("leaked", "leak"), ("held", "held")]:
        expected = {int(pointer, 16): size for pointer, size in printed[kind]}
        rows = [(size, named.get(pointer, {})) for pointer, size in expected.items()]
        right = sum(row.get("bytes") == size and row["kind"] == word for size, row in rows)
        yield right == len(expected), f"{right} of {len(expected)} that the program {kind} are there as `{word}`"
    total = sum(size for _, size in printed["leaked"])
    yield report["bytes"] == total, f"leaked are {report['bytes']} bytes, by the program {total}"
    count = len(printed["leaked"])
    yield report["count"] == count, f"in {report['count']} allocations, by the program {count}"
    sites = {row["call_site"] for row in report["groups"] if row["kind"] == "leak"}
    right = bool(sites) and all((text or "").startswith(site) for text in sites)
    yield right, f"from {', '.join(map(str, sites))}; it leaks at {site}"


# --- devices and contexts ----------------------------------------------------------------------------------------

COPIES = {"cuMemcpyHtoDAsync_v2": "copy", "cuMemsetD8Async": "set"}


def contexts(machine, section):
    recording = machine.record("contexts", "contexts")
    printed = json.loads(recording.printed)
    seen = context_lines(lines(recording.trace))
    section.say(f"It printed {len(printed['done'])} operations in the contexts {', '.join(printed['contexts'])}.")
    for op in ["launch", "copy", "set", "alloc", "free"]:
        expected = [(context, stream) for name, context, stream in printed["done"] if name == op]
        wrong = wrong_lines(expected, seen[op], with_stream=op in ("launch", "copy", "set"))
        section.check(
            not wrong and len(expected) == len(seen[op]),
            f"{op}: {len(seen[op])} lines, by the program {len(expected)}; {len(wrong)} differ. {wrong[:3] or ''}",
        )


def context_lines(trace_lines):
    """By op, in order: (device, context, stream) of each line."""
    seen, streams = {op: [] for op in ["launch", "copy", "set", "alloc", "free"]}, {}
    for line in trace_lines:
        kind, place = line.get("type"), (line.get("device"), line.get("context"))
        if kind == "userspace" and line["phase"] == "B":
            if line["name"] in COPIES:
                streams[line["event_id"]] = line["args"].get("hStream")
            elif line["name"] == "cuLaunchKernel":
                seen["launch"].append((*place, line.get("stream")))
        elif kind == "transfer" and line["name"] in COPIES:
            seen[COPIES[line["name"]]].append((*place, streams.pop(line["begin"], None)))
        elif kind == "memory" and line["name"] in ("cuMemAlloc_v2", "cuMemFree_v2"):
            seen[line["op"]].append((*place, None))
    return seen


def wrong_lines(expected, seen, with_stream):
    wrong = []
    for number, ((context, stream), line) in enumerate(zip(expected, seen)):
        right = 0, context, (stream or "0x0") if with_stream else None
        if line != right:
            wrong.append(f"line {number}: {line}, not {right}")
    return wrong


def streams(machine, section):
    recording = machine.record("streams", "streams")
    known = set(json.loads(recording.printed)["streams"])
    counted, found, named = places(lines(recording.trace))
    section.table(
        ["lines", "name", "device", "context", "number"],
        [[*key, count] for key, count in sorted(counted.items(), key=lambda one: -one[1])],
    )
    bad = {key: count for key, count in counted.items() if key[2] != 0 or key[3] is None}
    lacking = sum(bad.values())
    section.check(not bad, f"{lacking} of {sum(counted.values())} lines lack device 0 or a context. {bad or ''}")
    section.check(len(found) == 1, f"{len(found)} contexts are named, of one")
    section.check(known <= named, f"{len(known & named)} of the program's {len(known)} streams are in launches")


def places(trace_lines):
    """Launches, copies and memory of the device: how many have which device and context."""
    counted, found, named = Counter(), set(), set()
    for line in trace_lines:
        kind = line.get("type")
        launch = kind == "userspace" and line.get("phase") == "B" and "stream" in line
        if not (launch or kind == "transfer" or kind == "memory" and line.get("space") == "device"):
            continue
        what = "launch" if launch else kind
        counted[what, line["name"], line.get("device"), line.get("context")] += 1
        found.add(line.get("context"))
        if launch:
            named.add(line["stream"])
    return counted, found - {None}, named


# --- waste -------------------------------------------------------------------------------------------------------


def wasteful(machine, section, words):
    text = (PROGRAMS / "wasteful.py").read_text().splitlines()
    planted = {number: line.split("# waste: ")[1] for number, line in enumerate(text, 1) if "# waste: " in line}
    planted = {number: what for number, what in planted.items() if (what == "tiny launches") == bool(words)}
    recording = machine.record("wasteful", "wasteful", *words)
    section.block(machine.read("report", "waste", "--width", "160", recording.trace))
    report = json.loads(machine.read("report", "waste", "--json", recording.trace))
    recording.trace.unlink()
    for holds, said in judged_waste(report["findings"], planted):
        section.check(holds, said)


def judged_waste(findings, planted):
    for number, what in planted.items():
        sites = [finding.get("call_site") for finding in findings if what in finding["what"]]
        right = any((site or "").startswith(f"wasteful.py:{number} ") for site in sites)
        yield right, f"`{what}` from {sites or 'nowhere'}; the program has it in line {number}"
