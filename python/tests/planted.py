"""A job with known faults: 32 ranks on four hosts, whose clocks are off by up to 50 ms and drift by up to 100 ppm, with a
straggler, a mismatch and a hang.

In: the programs gpurec and make-job (crates/analysis/examples). Out: its traces, the truth about them, the dataset with
the clocks that `gpurec ranks` found, and what `gpurec ranks --json` says, in the rows of the questions. Not here: which
engine is asked.
"""

import json
import subprocess
from pathlib import Path

from gpurec.plots import rows_of

PLAN = ["--ranks", "32", "--per-host", "8", "--steps", "100", "--seed", "7", "--skew-ms", "50", "--drift-ppm", "100"]
FAULTS = ["--straggler", "5", "--mismatch", "--hang"]


class Traces:
    """Traces of a job, and the dataset that is made of them."""

    def __init__(self, gpurec, traces, dataset):
        self.gpurec, self.traces, self.dataset = gpurec, traces, dataset

    def convert(self):
        subprocess.run([self.gpurec, "export", "--format", "parquet", "-o", self.dataset, *self.traces], check=True)

    def ranks(self):
        """What `gpurec ranks` says; it writes the clocks into the dataset."""
        command = [self.gpurec, "ranks", "--json", "--write-clocks", self.dataset, *self.traces]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


class Job(Traces):
    """The job with known faults."""

    def __init__(self, gpurec, make_job, folder):
        self.folder = Path(folder) / "traces"
        subprocess.run([make_job, self.folder, *PLAN, *FAULTS], check=True)
        self.truth = json.loads((self.folder / "truth.json").read_text())
        super().__init__(gpurec, sorted(self.folder.glob("*.jsonl.zst")), Path(folder) / "dataset")


def said_by_ranks(report):
    """The answers of the questions, from the document of `gpurec ranks --json`."""
    hangs = []
    for hang in report["hangs"]:
        for rank in (it for it in hang["in_flight"] if it["is_missing"]):
            thread = rank["threads"][0]
            hangs.append((hang["comm"], hang["seq"], rank["rank"], thread["calls"][0], thread["request"]))
    return {
        "stragglers": sorted((it["rank"], it["collectives"], it["cost_ns"], it["arrival"]) for it in report["stragglers"]),
        # Sends and receives are in no question.
        "collectives": sorted(
            (it["comm"], it["op"], it["ranks"], it["count"], it["wait_ns"], it["transfer_ns"])
            for it in report["collectives"]
            if it["op"] not in ("Send", "Recv")
        ),
        "mismatches": sorted(
            (it["comm"], it["seq"], it["field"], int(rank), str(value))
            for it in report["mismatches"]
            for rank, value in it["values"].items()
        ),
        "hangs": sorted(hangs),
        "completeness": sorted((it["rank"], it["host"], it["complete"]) for it in report["ranks"]),
    }


COLUMNS = {
    "stragglers": ["rank", "collectives", "cost_ns", "arrival"],
    "collectives": ["comm", "op", "nranks", "count", "wait_ns", "transfer_ns"],
    "mismatches": ["comm", "seq", "field", "rank", "value"],
    "hangs": ["comm", "seq", "rank", "in_call", "in_driver"],
    "completeness": ["rank", "host", "complete"],
}


def said_by_dataset(dataset):
    """The same from a dataset, by its engine."""
    plain = lambda value: value.item() if hasattr(value, "item") else value
    return {
        question: sorted(tuple(plain(row[column]) for column in columns) for row in rows_of(getattr(dataset, question)()))
        for question, columns in COLUMNS.items()
    }


def differences(found, expected):
    """What differs between two answers, as sentences."""
    for question, rows in expected.items():
        for only, rest, where in ((rows, found[question], "missing"), (found[question], rows, "too much")):
            yield from (f"{question}: {row} is {where}" for row in only if row not in rest)


def wrong(said, report, truth):
    """What the answers say otherwise than the truth, as sentences."""
    rank, _, cost, arrival = max(said["stragglers"], key=lambda row: row[2])
    planted = next(it for it in truth["stragglers"] if it["rank"] == truth["straggler"])
    # The clocks are known to some microseconds.
    if rank != truth["straggler"] or arrival != "gpu" or abs(cost - planted["cost_ns"]) > 0.02 * planted["cost_ns"]:
        yield f"the straggler is {planted}, not rank {rank} with {cost} ns"
    mismatch = truth["mismatch"]
    odd = [row for row in said["mismatches"] if row[4] != str(mismatch["others"])]
    if odd != [(mismatch["comm"], mismatch["seq"], mismatch["field"], mismatch["rank"], str(mismatch["value"]))]:
        yield f"the mismatch is {mismatch}, not {odd}"
    hang = truth["hang"]
    if said["hangs"] != [(hang["comm"], hang["seq"], hang["missing"][0], hang["call"], hang["request"])]:
        yield f"the hang is {hang}, not {said['hangs']}"
    clocks = {it["host"]: it for it in truth["clocks"]}
    reference = clocks[next(it["host"] for it in report["clocks"] if it["reference"])]
    for clock in report["clocks"]:
        # The reference shows `at_ns` this long after the start.
        at = clock["at_ns"] - truth["start_realtime_ns"]
        ahead = lambda it: it["offset_ns"] + it["drift_ppm"] * 1e-6 * at
        off = abs(ahead(clocks[clock["host"]]) - ahead(reference) - clock["offset_ns"])
        if off > clock["error_ns"] + 5:
            yield f"the clock of {clock['host']} is {off:.0f} ns from the truth, and the error is {clock['error_ns']}"
