"""Launches, records of calls and kernels delivered: three counts that come from different places. In: recordings with
--gpu. Out: the account of the `end` line of each, whether it adds up, and whether the trace and the program agree with
it.
"""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field

from .frame import Failed, command_of, ended, part
from .running import PIPES, finish
from .traces import lines

GRAPH_REPLAYS = 1000
# The reasons why a launch may have no kernel in the trace.
WITHOUT = ["failed", "captured", "killed", "running", "other_client", "no_lane", "no_client", "broken", "no_times"]
LAUNCH = re.compile(r"(__)?cu(da)?(Launch(Cooperative)?Kernel|GraphLaunch|LaunchGrid)")
KILLED_AFTER = [0.3, 1.1, 2.3]  # seconds


@dataclass
class Seen:
    """What the lines of a trace say."""

    launches: int = 0
    open: int = 0  # launches that had not returned at the end
    gpu: dict = field(default_factory=dict)  # by kind
    in_graphs: int = 0
    account: dict = None


def seen(trace_lines):
    found, launches, around = Seen(), set(), set()
    for line in trace_lines:
        kind = line.get("type")
        if kind == "userspace" and line["phase"] == "B" and LAUNCH.match(line["name"]):
            launches.add(line["event_id"])
            around.add(line.get("parent"))
        elif kind == "gpu":
            found.gpu[line["kind"]] = found.gpu.get(line["kind"], 0) + 1
            found.in_graphs += line["kind"] == "kernel" and "node" in line
        elif kind == "end":
            found.account = line.get("gpu")
            found.open = len({call["begin"] for call in line["in_flight"]} & (launches - around))
    # A call of the runtime and the call of the driver in it are one launch.
    found.launches = len(launches - around)
    return found


def judged(found):
    """Whether the account adds up and fits the lines."""
    account = found.account
    reasons = {reason["code"]: reason["count"] for reason in account["reasons"]}
    launches, api, delivered = account["launches"], account["api"], account["delivered"]
    # The account counts launches that returned. The work of the others has no call.
    yield (
        launches == found.launches - found.open,
        (f"launches: {launches}, lines of launches {found.launches}, {found.open} of them did not return"),
    )
    drawn = found.gpu.get("kernel", 0) + found.gpu.get("graph", 0)
    yield delivered == drawn, f"delivered: {delivered}, `gpu` lines of kernels and graphs {drawn}"
    # Where the kernels of a process did not come, the records of its calls did not either.
    lost = sum(reasons.get(code, 0) for code in ["killed", "running", "other_client", "no_lane", "no_client", "broken"])
    yield launches - lost <= api <= launches, f"API records: {api}, of {launches} launches, {lost} without records"
    without = sum(reasons.get(code, 0) for code in WITHOUT)
    nodes = reasons.get("graph_nodes", 0)
    matched = delivered - account["unmatched"]
    text = f"{launches} launches - {without} without a kernel + {nodes} further nodes = {matched} delivered with a call"
    yield launches - without + nodes == matched, text
    unmatched, nothing = account["unmatched"], [account["dropped"], reasons.get("no_room", 0)]
    yield unmatched <= found.open, f"without a call: {unmatched}, of {found.open} launches that did not return"
    yield not any(nothing), "dropped {}, no room {}".format(*nothing)


HEAD = ["program", "launches", "API records", "delivered", "dropped", "without a call", "reasons"]


def row(name, account):
    reasons = ", ".join(f"{reason['code']} {reason['count']}" for reason in account["reasons"]) or "none"
    keys = ["launches", "api", "delivered", "dropped", "unmatched"]
    return [name, *(account[key] for key in keys), reasons]


def of_account(section, name, trace):
    """The account of a recording, judged. Returns what its lines say."""
    found = seen(lines(trace))
    if not found.account:
        raise Failed(f"the trace of {name} has no account of GPU work")
    section.table(HEAD, [row(name, found.account)])
    wrong = [text for holds, text in judged(found) if not holds]
    section.check(not wrong, f"the account of {name} adds up. {'; '.join(wrong)}")
    return found


@part("account", "Accounting: launches, API records, kernels delivered")
def account(machine, section):
    for option, kind in [("--gpu", "kernel"), ("--gpu=graphs", "graph")]:
        with section.step(f"A graph launched {GRAPH_REPLAYS} times, {option}"):
            graph(machine, section, option, kind)
    with section.step("Four streams from two threads, --gpu"):
        recording = machine.record("streams", "streams", options=("--gpu",))
        of_account(section, "streams.py", recording.trace)
    for seconds in KILLED_AFTER:
        with section.step(f"The program is killed after {seconds} s, --gpu"):
            killed(machine, section, seconds)


def graph(machine, section, option, kind):
    recording = machine.record("graphed", "graphed", GRAPH_REPLAYS, options=(option,))
    printed = json.loads(recording.printed)
    found = of_account(section, f"graphed.py {option}", recording.trace)
    recording.trace.unlink()
    if kind == "graph":
        drawn, expected = found.gpu.get("graph", 0), printed["replays"]
    else:
        drawn, expected = found.in_graphs, printed["replays"] * printed["kernels"]
    section.check(drawn == expected, f"{drawn} lines of {kind}s in graphs, by the program {expected}")


def killed(machine, section, seconds):
    trace = machine.made / "killed.jsonl"
    trace.unlink(missing_ok=True)
    command = [machine.gpurec, "-q", "--gpu", "-o", trace, "--", *command_of("endless")]
    with subprocess.Popen([str(word) for word in command], text=True, **PIPES) as recorder, ended(recorder):
        word, _, pid = recorder.stdout.readline().strip().partition(" ")
        if word != "ready":
            raise Failed(f"endless.py ended early: {recorder.communicate()[1].strip()[-300:]}")
        time.sleep(seconds)
        os.kill(int(pid), signal.SIGKILL)
        printed, _ = finish(recorder)
    found = of_account(section, "endless.py", trace)
    trace.unlink()
    reasons = {reason["code"]: reason["count"] for reason in found.account["reasons"]}
    known = json.loads(printed.splitlines()[-1])["launches"] if printed.strip() else 0
    launches, delivered = found.account["launches"], found.account["delivered"] - found.account["unmatched"]
    section.say(f"Delivered before the kill: {100 * delivered / max(launches, 1):.1f} % of {launches} launches.")
    section.check(launches >= known, f"{launches} launches are in the trace, the program had counted {known}")
    section.check(launches - delivered == reasons.get("killed", 0), "each launch that is missing counts as `killed`")
    status = recorder.returncode
    section.check(status == 128 + signal.SIGKILL, f"gpurec ended with {status}, as the program did")
