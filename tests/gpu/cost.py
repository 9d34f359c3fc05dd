"""What recording costs PyTorch. In: scripts/bench, its parts on a GPU. Out: medians and figures as tables, and a CSV
with every sample; also of a benchmark that ended early.
"""

import contextlib
import csv
import os
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict

from bench import gpu as bench_gpu
from bench import gpu_launched

from .frame import ROOT, Failed, ended, part

ROUNDS = 11
LONGEST = 545  # seconds; a command on the machine has 600
TOOLS = ["nothing", "gpurec", bench_gpu.BEFORE, bench_gpu.NO_BLOCKS, "gpurec --budget 2", bench_gpu.STACKS]
TOOLS += [bench_gpu.PROFILER]
MS = bench_gpu.MS


@part("cost", "Cost: PyTorch with gpurec, with --stacks, with torch.profiler")
def cost(machine, section):
    tools = [tool for tool in TOOLS if machine.before or tool != bench_gpu.BEFORE]
    words = ["--gpu", "--tools", ",".join(tools), *(["--before", machine.before] if machine.before else [])]
    measured(machine, section, "cost", bench_gpu.WORKS, words)


@part("lane-cost", "Cost of --gpu: PyTorch with gpurec, with --gpu, with torch.profiler")
def lane_cost(machine, section):
    section.say("torch.profiler records what runs on the GPU (CUDA activity only), and is on for the whole timed loop.")
    measured(machine, section, "lane-cost", gpu_launched.WORKS, ["gpu-launched"])


def measured(machine, section, name, works, words):
    """Runs scripts/bench with these words."""
    folder, kept = machine.made / name, machine.out / f"{name}.csv"
    with section.step("The benchmark"):
        status, said = benchmark(machine, folder, words)
        rounds = [line for line in said.splitlines() if "round" in line or "steps a loop" in line or "left out" in line]
        section.block("\n".join(rounds) or said[-1000:])
        if status:
            failures = [line.partition("NOT MEASURED: ")[2] for line in said.splitlines() if "NOT MEASURED: " in line]
            for text in failures:
                section.not_measured(text)
            if status != 1 or not failures:
                section.not_measured(f"scripts/bench ended early, with {status}: {said.strip()[-500:]}")
    with section.step("Medians"):
        samples = samples_of(folder / "bench/bench.csv")
        shutil.copy(folder / "bench/bench.csv", kept)
        section.say(
            f"Every sample is in {kept.name}. Milliseconds a step, the median of the rounds (number of rounds):"
        )
        medians(section, samples, works)
    with section.step("Figures"):
        figures(section, folder / "bench/figures.csv")


def benchmark(machine, folder, words):
    words = [sys.executable, ROOT / "scripts/bench", *words, "--gpurec", machine.gpurec, "--rounds", ROUNDS]
    log = machine.made / "bench.txt"
    with open(log, "w") as out:
        process = subprocess.Popen(
            [str(word) for word in words],
            env={**os.environ, "CARGO_TARGET_DIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
        )
        with contextlib.suppress(subprocess.TimeoutExpired), ended(process):
            process.wait(LONGEST)
    return process.returncode, log.read_text(errors="replace")


def samples_of(path):
    """By (case, tool, what) the values, round by round."""
    samples = defaultdict(list)
    if not path.exists():
        raise Failed("the benchmark wrote no samples: the reason is above")
    with open(path, newline="") as rows:
        for row in csv.DictReader(rows):
            samples[row["case"], row["tool"], row["what"]].append(float(row["value"]))
    if not samples:
        raise Failed("the benchmark measured nothing: the reason is above")
    return samples


def medians(section, samples, works):
    tools = list(dict.fromkeys(tool for _, tool, what in samples if what == MS))
    rows = []
    for work in works:
        cells = [samples.get((work, tool, MS)) for tool in tools]
        rows.append([work, *(f"{statistics.median(c):.4g} ({len(c)})" if c else "-" for c in cells)])
    section.table(["loop", *tools], rows)
    others = [(key, values) for key, values in samples.items() if key[2] != MS]
    section.table(
        ["of", "tool", "what", "median", "most"],
        [[*key, f"{statistics.median(values):.6g}", f"{max(values):.6g}"] for key, values in others],
    )


def figures(section, path):
    with open(path, newline="") as rows:
        rows = list(csv.DictReader(rows))
    missed = [row["figure"] for row in rows if row["reached"] == "NO"]
    section.table(
        ["figure", "median", "half of them within", "rounds", "target", "reached"],
        [
            [row["figure"], row["median"], f"{row['quartile1']} .. {row['quartile3']}", row["rounds"], row["target"]]
            + [row["reached"]]
            for row in rows
        ],
    )
    section.say(f"Targets missed: {', '.join(missed) or 'none'}.")
