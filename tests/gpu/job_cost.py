"""What recording all ranks of a job costs each of them, and small traces of two ranks. In: jobs of ranked.py that time
their steps. Out: tables of medians, a CSV with every sample, two traces for traces/.
"""

import csv
import shutil
import statistics
import time
from collections import Counter, defaultdict

from .frame import Failed, part, run
from .job import EACH, NODE, end_of, gpus, job, ranks_of
from .traces import lines

PLAIN, PROFILER = "nothing", "torch.profiler"
ROUNDS = 9
SECONDS = 320  # no round begins that would end later
TOOLS = {  # what ranked.py does, who records it, how
    PLAIN: (["timed"], None, ()),
    "gpurec --gpu, each rank": (["timed"], EACH, ("--gpu",)),
    "gpurec --gpu, the node": (["timed"], NODE, ("--gpu",)),
    "gpurec, the node": (["timed"], NODE, ()),
    PROFILER: (["profiled"], None, ()),
}
LOSSES = ["dropped", "no_room", "no_times", "killed", "no_lane"]
KEPT = ["nccl*", "cudaLaunchKernel*", "cudaMemcpy*", "cuda*Synchronize", "cudaMalloc", "cudaFree", "cuLaunchKernel*"]
LIMIT = 200_000  # bytes of a trace for traces/
PAIR = "ddp_{gpu}_rank{rank}.jsonl.zst"


@part("ranks-cost", "Cost for each rank of a job, and of the recorders")
def ranks_cost(machine, section):
    samples, began, longest = [], time.monotonic(), 0
    with section.step("Rounds"):
        section.say(f"{gpus()} ranks, DDP, in each round each tool in turn, a job of its own each time.")
        for number in range(ROUNDS):
            start = time.monotonic()
            if start + longest > began + SECONDS:
                break
            names = list(TOOLS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                samples += one_job(machine, section, number, name)
            longest = max(longest, time.monotonic() - start)
    with open(machine.out / "ranks-cost.csv", "w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["round", "tool", "rank", "what", "value"])
        rows.writerows(samples)
    with section.step("Figures"):
        figures(section, samples)


def one_job(machine, section, number, name):
    what, recorder, options = TOOLS[name]
    try:
        made = job(machine, what, recorder, options)
    except Failed as failed:
        section.not_measured(f"{name}: {failed}")
        return
    for rank, wrote in made.wrote("timed").items():
        yield number, name, rank, "ms", wrote["ms"]
    if recorder:
        cpu = sum(made.recorders_cpu.values())
        yield number, name, "", "recorders' CPU, s", cpu
        yield number, name, "", "recorders' CPU, % of one", 100 * cpu / made.seconds
        for trace in made.traces():
            end = end_of(trace)
            yield number, name, "", "events", end["events"]
            yield number, name, "", "lost", end["lost"]
            account = end.get("gpu") or {}
            if options:
                gone = sum(reason["count"] for reason in account["reasons"] if reason["code"] in LOSSES)
                yield number, name, "", "GPU records", account["delivered"]
                yield number, name, "", "GPU records lost", account["dropped"] + gone


def figures(section, samples):
    of, ratios = defaultdict(list), defaultdict(list)
    for number, name, rank, what, value in samples:
        of[name, rank, what].append(value)
    by_round = {(number, name, rank): value for number, name, rank, what, value in samples if what == "ms"}
    for (number, name, rank), value in by_round.items():
        if (number, PLAIN, rank) in by_round:
            ratios[name, rank].append(value / by_round[number, PLAIN, rank])
    ranks = sorted({rank for _, rank in ratios})
    section.say("A step, divided by that of the same rank and round without a tool: medians, and the range of half.")
    section.table(
        ["tool", "rounds", *(f"rank {rank}" for rank in ranks)],
        [[name, len(ratios[name, 0]), *(spread(ratios[name, rank]) for rank in ranks)] for name in TOOLS],
    )
    section.say("Milliseconds a step, medians.")
    section.table(
        ["tool", *(f"rank {rank}" for rank in ranks)],
        [[name, *(f"{statistics.median(of[name, rank, 'ms']):.3f}" for rank in ranks)] for name in TOOLS],
    )
    rest = {(name, what): values for (name, rank, what), values in of.items() if rank == ""}
    section.table(
        ["tool", "what", "median", "most"],
        [[*key, f"{statistics.median(values):.6g}", f"{max(values):.6g}"] for key, values in rest.items()],
    )
    lost = sum(sum(values) for (_, what), values in rest.items() if "lost" in what)
    section.check(not lost, f"nothing is lost in any of the jobs: {lost}")


def spread(values):
    if len(values) < 2:
        return ", ".join(f"{value:.3f}" for value in values)
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} .. {high:.3f})"


@part("ranks-trace", "Small traces of two ranks for traces/")
def ranks_trace(machine, section):
    kept = [word for name in KEPT for word in ("--only", name)]
    for steps in ("6", "2"):
        with section.step(f"{steps} steps"):
            options = ("--gpu", "--stacks=nccl*,*Synchronize*", *kept)
            made = job(machine, ["even", "-1", steps], EACH, options, ranks=2, suffix=".jsonl.zst")
            sizes = [trace.stat().st_size for trace in made.traces()]
            section.say(f"{sizes} bytes.")
            if max(sizes) <= LIMIT:
                break
            most = Counter(f"{line['type']} {line.get('name')}"[:60] for line in read_lines(made.traces()[0]))
            section.say(f"{most.most_common(25)}")
    else:
        raise Failed(f"even {steps} steps take more than {LIMIT} bytes")
    model = section.about.partition("NVIDIA ")[2].split()[0].lower()
    for rank, trace in enumerate(made.traces()):
        (machine.out / PAIR.format(gpu=model, rank=rank)).write_bytes(trace.read_bytes())
    said = ranks_of(machine, made.traces())
    section.check(len(said["ranks"]) == 2 and not said["missing"], f"both ranks are found: {said['ranks']}")


def read_lines(trace):
    """The lines of a compressed trace, which this Python may not be able to decompress."""
    plain = trace.with_suffix("")
    done = run(["zstd", "-qdf", trace, "-o", plain], 60) if shutil.which("zstd") else None
    return lines(plain) if done and not done.returncode else []
