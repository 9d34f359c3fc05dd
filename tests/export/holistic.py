#!/usr/bin/env python3
"""The same job in Holistic Trace Analysis: holistic.py --gpurec PATH TRACE…, a trace of each rank, recorded with --gpu.

In: traces; HolisticTraceAnalysis from PyPI. Each trace becomes what torch.profiler writes of the same calls and GPU work.
Out: GPU time by rank and kernel, idle time and stragglers, of HTA and of gpurec; exit status 1 if GPU times differ.
"""

import argparse
import collections
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
CATEGORIES = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
NAMES = {"cuLaunchKernel": "cudaLaunchKernel", "cuLaunchKernelEx": "cudaLaunchKernelExC", "memset": "Memset (Device)"}
COPIES = {"H2D": "Memcpy HtoD (Pageable -> Device)", "D2H": "Memcpy DtoH (Device -> Pageable)"}


def read(path):
    if path.suffix != ".zst":
        return [json.loads(line) for line in path.read_text().splitlines()]
    text = subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def event(category, name, pid, tid, line, args):
    times = {"ts": line["ts"] * 1e6, "dur": line["duration_us"]}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def of_work(line):
    """Work on the GPU."""
    args = {key: line[key] for key in ["correlation", "device", "context", "stream"]}
    if line["kind"] == "kernel":
        args |= {"grid": line["grid"], "block": line["block"], "registers per thread": line["registers"]}
    else:
        args |= {"bytes": line["size"]}
    name = COPIES.get(line.get("direction"), NAMES.get(line["name"], line["name"]))
    return event(CATEGORIES[line["kind"]], name, line["device"], line["stream"], line, args)


def profile(lines, rank, world):
    """What torch.profiler would have written, and the GPU time by kernel."""
    calls = {line["event_id"]: dict(line) for line in lines if line.get("phase") == "B"}
    for line in lines:
        if line.get("phase") == "E" and line["begin"] in calls:
            calls[line["begin"]]["duration_us"] = line["duration_us"]
    events, launched, times = [], set(), collections.Counter()
    for line in lines:
        if line["type"] != "gpu" or line["kind"] not in CATEGORIES:
            continue
        events.append(of_work(line))
        if line["kind"] == "kernel":
            times[rank, line["name"]] += line["duration_us"]
        call = calls.get(line["begin"])
        if call and "duration_us" in call and line["correlation"] not in launched:
            launched.add(line["correlation"])
            args = {"correlation": line["correlation"], "cbid": 211}
            name = NAMES.get(call["name"], call["name"])
            events.append(event("cuda_runtime", name, line["pid"], call["tid"], call, args))
    first = min(one["ts"] for one in events) - 1
    whole = {"ts": first / 1e6, "duration_us": max(one["ts"] + one["dur"] for one in events) + 1 - first}
    host = next(one for one in events if one["cat"] == "cuda_runtime")
    events.append(event("user_annotation", "ProfilerStep#1", host["pid"], host["tid"], whole, {}))
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    return {"schemaVersion": 1, "distributedInfo": info, "deviceProperties": [], "traceEvents": events}, times


def gpurecs(gpurec, words):
    done = subprocess.run([gpurec, *words], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpurec", required=True)
    parser.add_argument("traces", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    from hta.trace_analysis import TraceAnalysis

    own = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="hta-") as folder:
        for rank, path in enumerate(options.traces):
            document, times = profile(read(path), rank, len(options.traces))
            own.update(times)
            with gzip.open(os.path.join(folder, f"rank{rank}.json.gz"), "wt") as out:
                json.dump(document, out)
        analysis = TraceAnalysis(trace_dir=folder, include_last_profiler_step=True)
        every = {"visualize": False, "num_kernels": 1 << 20, "duration_ratio": 1.0}
        _, kernels = analysis.get_gpu_kernel_breakdown(**every)
        idle = analysis.get_temporal_breakdown(visualize=False)
        try:
            stragglers = analysis.get_potential_stragglers(num_candidates=1)
        except ValueError as error:
            stragglers = f"none: {error}"
    theirs = {(int(row["rank"]), row["name"]): row["sum (us)"] for _, row in kernels.iterrows()}
    off = [key for key in own if abs(theirs.get(key, 0) - own[key]) > 0.001]
    print(f"GPU time of {len(own)} pairs of rank and kernel: {len(off)} differ by more than 1 ns")
    for rank, path in enumerate(options.traces):
        ms = idle.loc[idle["rank"] == rank, "idle_time(us)"].iloc[0] / 1e3
        report = gpurecs(options.gpurec, ["report", "gpu", "--json", path])
        print(f"rank {rank}: idle {ms:.3f} ms by HTA, {report['idle_ns'] / 1e6:.3f} by gpurec")
    print("stragglers by HTA:", stragglers)
    ranks = gpurecs(options.gpurec, ["ranks", "--json", *options.traces])
    print("by gpurec:", [(one["rank"], one["collectives"]) for one in ranks["stragglers"]])
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
