"""Reads datasets with DuckDB and pyarrow and compares them with what gpurec itself says about the traces.

    pip install --target DIR duckdb pyarrow
    PYTHONPATH=DIR python3 parquet.py GPUREC TRACE...

In: the program gpurec and traces. Out: what was compared, or what differs and status 1. Each trace becomes a dataset
of its own. Rows are counted against the lines of the trace; sums and counts against `gpurec summary --json` and
`gpurec report gpu --json`.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile

import duckdb
import pyarrow.dataset

TABLES = {
    "calls": lambda line: line["type"] == "userspace" and line.get("phase") == "B",
    "driver": lambda line: line["type"] in ("kernel", "scheduler") and line.get("phase") != "E",
    "gpu": lambda line: line["type"] == "gpu",
    "memory": lambda line: line["type"] == "memory",
    "transfers": lambda line: line["type"] == "transfer",
    "blocks": lambda line: line["type"] == "block",
    "collectives": lambda line: line["type"] == "collective",
    "processes": lambda line: line["type"] == "process",
    "other": lambda line: line["type"] in ("device", "clock", "xid", "lost", "budget", "suspend"),
    "meta": lambda line: line["type"] == "header",
}


# Named, because pyarrow cannot find the type of a key that is unknown everywhere.
KEYS = pyarrow.dataset.partitioning(
    pyarrow.schema([("job", pyarrow.string()), ("host", pyarrow.string()), ("rank", pyarrow.int64())]), flavor="hive"
)


class Wrong(Exception):
    """A dataset that does not say what its trace says."""


def same(what, found, expected):
    if found != expected:
        raise Wrong(f"{what}: the dataset has {found}, gpurec or the trace {expected}")


def lines_of(path):
    data = open(path, "rb").read()
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line) for line in data.splitlines() if line]


class Dataset:
    def __init__(self, folder):
        self.folder = folder
        self.db = duckdb.connect()

    def has(self, table):
        return os.path.isdir(os.path.join(self.folder, table))

    def rows(self, table, columns, rest=""):
        """Of a table without files: none."""
        if not self.has(table):
            return []
        files = f"{self.folder}/{table}/**/*.parquet"
        source = f"read_parquet('{files}', hive_partitioning = true)"
        return self.db.execute(f"select {columns} from {source} {rest}").fetchall()

    def arrow(self, table, columns=None):
        folder = os.path.join(self.folder, table)
        return pyarrow.dataset.dataset(folder, format="parquet", partitioning=KEYS).to_table(columns=columns)


def counts(data, trace):
    lines = lines_of(trace)
    for table, is_of in TABLES.items():
        expected = sum(map(is_of, lines))
        found = data.rows(table, "count(*)")[0][0] if data.has(table) else 0
        same(f"rows of {table}", found, expected)
        if data.has(table):
            same(f"rows of {table} by pyarrow", data.arrow(table, ["event_id"]).num_rows, expected)
    frames = sum(max(1, len(line["frames"])) for line in lines if line["type"] == "stack")
    same("frames", (data.rows("stacks", "count(*)") or [(0,)])[0][0], frames)
    same("rank and job", data.rows("meta", "count(*), count(distinct host)"), [(1, 1)])
    return len(lines)


def calls(data, trace):
    """Names, durations and errors of all calls, exactly."""
    expected = collections.Counter()
    begun = {}
    for line in lines_of(trace):
        if line["type"] == "userspace" and line["phase"] == "B":
            begun[line["event_id"]] = [line["name"], line["tid"], None, None]
        elif line["type"] == "userspace":
            row = begun[line["begin"]]
            row[2], row[3] = line.get("duration_us"), line.get("error")
    for name, tid, us, error in begun.values():
        expected[(name, tid, None if us is None else round(us * 1000), error)] += 1
    columns = ["name", "tid", "duration_ns", "error"]
    same("calls", collections.Counter(data.rows("calls", ", ".join(columns))), expected)
    rows = data.arrow("calls", columns).to_pylist() if data.has("calls") else []
    same("calls by pyarrow", collections.Counter(tuple(row[c] for c in columns) for row in rows), expected)


def summary(data, said):
    functions = {f["name"]: (f["calls"], f["total_ns"]) for f in said["functions"]}
    found = data.rows("calls", "name, count(*), coalesce(sum(duration_ns), 0)", "where duration_ns is not null group by name")
    found = {name: (number, int(ns)) for name, number, ns in found}
    same("functions", {name: found.get(name) for name in functions}, functions)
    for part in said["memory"]["by_space"]:
        where = f"where space = '{part['space']}'"
        alloc = data.rows("memory", "count(*), sum(size)", where + " and op = 'alloc'")[0]
        same("allocations", (alloc[0], int(alloc[1] or 0)), (part["allocations"], part["allocated_bytes"]))
    for part in said["transfers"]["by_direction"]:
        found = data.rows("transfers", "count(*), sum(size)", f"where direction = '{part['direction']}'")[0]
        same("copies", (found[0], int(found[1])), (part["count"], part["bytes"]))
    same("complete", data.rows("meta", "complete")[0][0], said["complete"])
    same("lost", data.rows("meta", "coalesce(lost, 0)")[0][0], said["lost"])


def gpu(data, said):
    kernels = {k["name"]: (k["instances"], k["total_ns"]) for k in said["kernels"]}
    found = data.rows("gpu", "name, count(*), sum(duration_ns)", "where kind = 'kernel' group by name")
    same("kernels", {name: (number, int(ns)) for name, number, ns in found}, kernels)
    for device in said["devices"]:
        found = data.rows("gpu", "count(*), sum(duration_ns)", f"where device = {device['device']}")[0]
        same("work of a device", (found[0], int(found[1])), (device["work"], device["time_ns"]))


def main(program, traces):
    for trace in traces:
        with tempfile.TemporaryDirectory() as folder:
            folder = os.path.join(folder, "dataset")
            subprocess.run([program, "export", "--format", "parquet", "-o", folder, trace], check=True)
            ask = lambda *words: json.loads(subprocess.run([program, *words, "--json", trace], stdout=subprocess.PIPE, check=True).stdout)
            data = Dataset(folder)
            number = counts(data, trace)
            calls(data, trace)
            summary(data, ask("summary"))
            if data.has("gpu"):
                gpu(data, ask("report", "gpu"))
            size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
            print(f"{trace}: {number} lines are in {size} bytes")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(1)
