"""`report idle` on training that keeps the GPU waiting. In: programs with a comment that names the cause. Out: whether
the report names that cause and its line; and the busy share of the trace against what NVML says meanwhile.
"""

import contextlib
import ctypes
import json
import statistics
import threading
import time

from .blocks import MARKER
from .frame import PROGRAMS, Failed, part
from .traces import lines

OPTIONS = ("--stacks", "--gpu")
EVERY_S = 0.1
LATE_NS = 1_000_000_000  # NVML's figure is of the last second, or a part of it
NEAR = 10  # percentage points


@part("idle", "Idle GPUs: the cause and its line; the share, by NVML")
def idle(machine, section):
    with section.step("slow_loader.py"):
        report = recorded(machine, section, "slow_loader")
        for holds, text in judged_loader(report, line_of("slow_loader", "own code")):
            section.check(holds, text)
    with section.step("hidden_item.py"):
        report = recorded(machine, section, "hidden_item")
        site = line_of("hidden_item", "synchronisation")
        for holds, text in judged_item(report, site):
            section.check(holds, text)
    with section.step("hidden_item.py kept: the same without the wait"):
        kept = recorded(machine, section, "hidden_item", "400", "kept")
        shares = [f"{100 * share(one):.1f} %" for one in (report, kept)]
        section.check(
            share(kept) < share(report), f"the GPU is idle for {shares[0]} with the wait, {shares[1]} without"
        )


def line_of(program, what):
    """How the call site of the line that is marked with this cause begins."""
    text = (PROGRAMS / f"{program}.py").read_text().splitlines()
    number = next(number for number, line in enumerate(text, 1) if line.endswith(f"# idle: {what}"))
    return f"{program}.py:{number} "


def recorded(machine, section, program, *words):
    with utilisation() as samples:
        recording = machine.record(program, program, *words, options=OPTIONS)
    printed = json.loads(recording.printed)
    section.say(f"It printed `{json.dumps(printed)}`.")
    window, shares = busy_in_loop(lines(recording.trace))
    loop = ["--from", f"{window[0]:.9f}", "--to", f"{window[1]:.9f}"]
    report = json.loads(machine.read("report", "idle", "--json", *loop, recording.trace))
    section.say("Of the loop alone, without what goes before it:")
    section.block(machine.read("report", "idle", "--top", "5", "--width", "150", *loop, recording.trace))
    try:
        against_nvml(section, shares, printed, samples)
    finally:
        recording.trace.unlink()
    return report


def share(report):
    return report["idle_ns"] / max(report["idle_ns"] + report["busy_ns"], 1)


# --- causes ------------------------------------------------------------------------------------------------------


def judged_loader(report, site):
    rows = report.get("lines") or []
    first = max(rows, key=lambda row: row["total_ns"], default={})
    named = f"{first.get('total_percent')} % of the idle time: {first.get('what')}, {first.get('call_site')}"
    right = str(first.get("what")).startswith("own code") and str(first.get("call_site")).startswith(site)
    yield right, f"the first cause is own code before {site}({named})"
    most = first.get("total_ns", 0) > report["idle_ns"] / 2
    yield most, "it has more than half of the idle time"


def judged_item(report, site):
    waited = 100 * report["waited_gap_ns"] / max(report["idle_ns"], 1)
    yield waited > 50, f"{waited:.1f} % of the idle time is by synchronisation"
    sites = {str(row["call_site"]) for row in report.get("waits") or []}
    yield any(text.startswith(site) for text in sites), f"waits are named in {sorted(sites)}; it waits in {site}"
    rows = report.get("lines") or []
    first = max(rows, key=lambda row: row["total_ns"], default={})
    after = str(first.get("after_call_site"))
    named = f"{first.get('total_percent')} % of the idle time: {first.get('what')}, after the call at {after}"
    yield after.startswith(site), f"the first line is what the host did after the wait ({named})"


# --- the share ---------------------------------------------------------------------------------------------------


class Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


@contextlib.contextmanager
def utilisation():
    """A list that grows meanwhile: (CLOCK_MONOTONIC in ns, percent) of device 0, from NVML. Empty without NVML."""
    samples, ended = [], threading.Event()
    reader = threading.Thread(target=ask_nvml, args=(samples, ended))
    reader.start()
    try:
        yield samples
    finally:
        ended.set()
        reader.join()


def ask_nvml(samples, ended):
    with contextlib.suppress(OSError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        device, now = ctypes.c_void_p(), Utilisation()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
            return
        while not ended.wait(EVERY_S):
            if not nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(now)):
                samples.append((time.monotonic_ns(), now.gpu))


def busy_in_loop(trace_lines):
    """The beginning and end of the time between the first and the last call of the marker; the shares of that time in
    which a kernel ran, and in which any work ran."""
    instants, kernels, all_work = [], [], []
    for line in trace_lines:
        if line.get("name") == MARKER and line.get("phase") == "B" and line["depth"] == 0:
            instants.append(line["ts"])
        elif line.get("type") == "gpu":
            span = line["ts"], line["ts"] + line["duration_us"] / 1e6
            all_work.append(span)
            if line["kind"] == "kernel":
                kernels.append(span)
    if len(instants) < 2:
        raise Failed(f"the trace has {len(instants)} calls of {MARKER}, of two")
    window = instants[0], instants[-1]
    return window, (covered(kernels, window), covered(all_work, window))


def covered(spans, window):
    """The share of the window that the spans cover together."""
    total, upto, last = 0.0, *window
    for start, end in sorted(spans):
        start, end = max(start, upto), min(end, last)
        if end > start:
            total, upto = total + end - start, end
    return total / (last - window[0])


def against_nvml(section, shares, printed, samples):
    inside = [percent for at, percent in samples if printed["began_ns"] + LATE_NS < at < printed["ended_ns"]]
    kernels, work = (100 * share for share in shares)
    section.say(f"In the loop a kernel ran for {kernels:.1f} % of the time, a kernel or a copy for {work:.1f} %.")
    if len(inside) < 10:
        section.not_measured(f"{len(inside)} samples of NVML in the loop: is there a libnvidia-ml.so.1?")
        return
    mean = statistics.mean(inside)
    section.check(
        abs(mean - kernels) <= NEAR, f"NVML says {mean:.1f} % (mean of {len(inside)} samples), to {NEAR} points"
    )
