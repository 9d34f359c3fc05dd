#!/usr/bin/env python3
"""The launch matrix: jobs of four ranks, started by torchrun, mpirun and srun, with a trace of each rank and of each node.

usage: matrix.py --gpurec PATH --standins DIR [--launchers DIR] [torchrun|mpirun|srun]...

In: gpurec, the folder with the stand-in libcudart (OUT_DIR/demo of the build), Debian's launchers (launchers.py), which
are fetched into --launchers. As root. Out: a row for each way of starting a job, with what its traces have; exit status 1
if a rank is missing, something was lost, or the lines are not what the ranks logged (fixtures/nccl/rank.c).
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

import launchers

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "../../fixtures/nccl")
RANKS, STEPS, OPERATIONS = 4, 3, 8
KEYS = ["comm", "rank", "nranks", "seq", "op", "count", "dtype", "bytes", "peer", "pseq", "root", "redop", "group"]


def build(folder, standins):
    """The stand-in libnccl and the program that is a rank."""
    runtime = os.path.join(standins, "libcudart.so.13")
    common = ["cc", "-std=gnu11", "-O2", "-pthread", f"-Wl,-rpath,{standins}:{folder}"]
    library, program = os.path.join(folder, "libnccl.so.2"), os.path.join(folder, "rank")
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnccl.so.2"]
    subprocess.run([*common, *shared, "-o", library, os.path.join(FIXTURES, "nccl.c"), runtime], check=True)
    subprocess.run([*common, "-o", program, os.path.join(FIXTURES, "rank.c"), library, runtime], check=True)
    return program


def ways(gpurec, rank, job):
    """{launcher: {row: words}}: how a job is started. `job` is its folder."""
    each = [gpurec, "-q", "-o", f"{job}/%h-%r.jsonl", "--", *rank]
    node = [gpurec, "-q", "-o", f"{job}/node.jsonl", "--"]
    # With Python 3.11, PyTorch 1.13 only takes 1 or 2 for where the output goes.
    output = ["-r", "1", "-t", "1", "--log_dir", f"{job}/logs"]
    torchrun = ["/usr/bin/python3", "-m", "torch.distributed.run", "--no_python", *output]
    alone = [*torchrun, "--nproc_per_node", str(RANKS)]
    meeting = ["--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_id", "nightly"]
    (port,) = launchers.free_ports(1)
    here = [*meeting, "--rdzv_endpoint", f"127.0.0.1:{port}", "--nproc_per_node", str(RANKS // 2)]
    mpirun = ["mpirun.openmpi", "--oversubscribe", "-n", str(RANKS)]
    return {
        "torchrun": {"a trace of each rank": [*alone, *each], "a trace of the node": [*node, *alone, *rank]},
        "mpirun": {"a trace of each rank": [*mpirun, *each], "a trace of the node": [*node, *mpirun, *rank]},
        "srun": {
            "a trace of each rank": ["srun", "-N2", f"-n{RANKS}", *each],
            "a trace of each node, torchrun inside": [
                "srun", "-N2", "-n2", gpurec, "-q", "-o", f"{job}/node-%r.jsonl", "--", *torchrun, *here, *rank,
            ],
        },
    }


def told(line):
    values = [line.get(key) for key in KEYS]
    return ["-" if value is None else str(value) for value in values]


def look(job, program):
    """({rank: its operations as recorded}, the faults of the traces, the number of traces)."""
    ranks, faults = {}, []
    traces = sorted(name for name in os.listdir(job) if name.endswith(".jsonl"))
    for name in traces:
        with open(os.path.join(job, name)) as lines:
            lines = [json.loads(line) for line in lines]
        end = lines[-1]
        if end["type"] != "end" or end["lost"] or not end["complete"]:
            faults.append(f"{name}: {end.get('incomplete_because', 'no end')}")
        of = {}
        for line in lines:
            if line["type"] == "process" and line["name"] == "exec" and line["command"][0] == program:
                of[line["pid"]] = ranks.setdefault(line.get("rank"), [])
                if line.get("world_size") != RANKS or "local_rank" not in line:
                    faults.append(f"{name}: {line}")
            elif line["type"] == "collective":
                of[line["pid"]].append(told(line))
    return ranks, faults, len(traces)


def compare(job, ranks):
    """What differs between the lines and the logs of the ranks."""
    faults, comms = [], {}
    for rank in range(RANKS):
        with open(os.path.join(job, f"truth-{rank}")) as lines:
            truth = [line.split() for line in lines]
        seen = ranks.get(rank, [])
        if len(seen) != len(truth) or len(truth) != STEPS * OPERATIONS:
            faults.append(f"rank {rank}: {len(seen)} operations are recorded, {len(truth)} were made")
        for recorded, made in zip(seen, truth):
            if recorded[1:] != made[1:] or comms.setdefault(made[0], recorded[0]) != recorded[0]:
                faults.append(f"rank {rank}: {recorded} is recorded, {made} was made")
    if len(set(comms.values())) != 3:
        faults.append(f"communicators: {comms}")
    return faults


def run(row, words, job, program, env):
    done = subprocess.run(words, env={**env, "STANDIN_NCCL": job}, capture_output=True, text=True, timeout=600)
    ranks, faults, traces = look(job, program)
    if done.returncode:
        faults.append(f"exit status {done.returncode}: {done.stderr[-2000:]}")
    else:
        faults += compare(job, ranks)
    print(f"{row:<45} {traces} traces, ranks {sorted(ranks, key=str)}: {'FAILED' if faults else 'passed'}", flush=True)
    for fault in faults[:8]:
        print(f"    {fault}")
    return not faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpurec", required=True, type=os.path.abspath)
    parser.add_argument("--standins", required=True, type=os.path.abspath)
    parser.add_argument("--launchers", default="/tmp/gpurec-launchers", type=os.path.abspath)
    parser.add_argument("only", nargs="*", metavar="LAUNCHER")
    options = parser.parse_args()
    all_passed = True
    with tempfile.TemporaryDirectory(prefix="launch-") as scratch, contextlib.ExitStack() as running:
        program = build(scratch, options.standins)
        for launcher in options.only or launchers.PACKAGES:
            env = launchers.environment(launchers.unpacked(options.launchers, launcher))
            if launcher == "srun":
                usr = os.path.join(options.launchers, launcher, "usr")
                env = running.enter_context(launchers.slurm(usr, os.path.join(scratch, "slurm")))
                inside = launchers.environment(launchers.unpacked(options.launchers, "torchrun"))
                env["LD_LIBRARY_PATH"] += ":" + inside["LD_LIBRARY_PATH"]
                env["PYTHONPATH"] = inside["PYTHONPATH"]
            for number in range(2):
                job = os.path.join(scratch, f"{launcher}-{number}")
                os.mkdir(job)
                rows = ways(options.gpurec, [program, job, str(STEPS)], job)[launcher]
                row, words = list(rows.items())[number]
                all_passed &= run(f"{launcher}: {row}", words, job, program, env)
    sys.exit(not all_passed)


if __name__ == "__main__":
    main()
