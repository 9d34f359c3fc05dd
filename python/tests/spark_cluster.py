#!/usr/bin/env python3
"""Asks a real Spark cluster on this machine every question, and compares its answers with DuckDB's.

    python3 spark_cluster.py [--gpurec PATH] DATASET_OR_FOLDER_OF_TRACES
    python3 spark_cluster.py --gpurec PATH --make-job PATH

In: a dataset, or a folder of traces, which the cluster then converts itself, one task a trace (--gpurec names the
program); or make-job, whose job of 32 ranks with planted faults (planted.py) Spark, DuckDB and `gpurec ranks` then must
say the same about. Out: status 1 if an answer differs. Needs this package with [spark], and a Java.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cluster  # noqa: E402
import gpurec  # noqa: E402
import planted  # noqa: E402
from gpurec import ingest  # noqa: E402
from gpurec.plots import rows_of  # noqa: E402

QUESTIONS = ["stragglers", "collectives", "mismatches", "hangs", "kernels", "gpu_busy", "memory", "failed_calls", "completeness"]


def plain(value):
    """A value that is equal for both engines: no NaN, whole numbers as such, fractions to nine digits."""
    if value is None or value != value:
        return None
    if isinstance(value, str) or isinstance(value, bool):
        return value
    value = value.item() if hasattr(value, "item") else value
    return int(value) if float(value).is_integer() and abs(value) < 2**53 or isinstance(value, int) else float(f"{value:.9g}")


def answers(dataset):
    found = {}
    for name in QUESTIONS:
        began = time.monotonic()
        rows = [{key: plain(value) for key, value in row.items()} for row in rows_of(getattr(dataset, name)())]
        # Rows that the order of the question does not tell apart are in any order.
        found[name] = sorted(rows, key=repr)
        print(f"  {name}: {len(rows)} rows, {time.monotonic() - began:.1f} s", flush=True)
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("path", type=Path, nargs="?")
    options.add_argument("--gpurec", default="gpurec")
    options.add_argument("--make-job")
    given = options.parse_args()
    if (given.path is None) == (given.make_job is None):
        options.error("give a dataset or traces, or --make-job")
    with tempfile.TemporaryDirectory() as scratch, cluster.cluster(scratch) as address:
        path, job = given.path, None
        if given.make_job:
            job = planted.Job(given.gpurec, given.make_job, Path(scratch) / "job")
            path = job.dataset
            if ingest.main([str(job.folder), str(path), "--spark", address, "--gpurec", given.gpurec]):
                return 1
            report = job.ranks()
        elif not (path / "meta").is_dir():
            path = Path(scratch) / "dataset"
            if ingest.main([str(given.path), str(path), "--spark", address, "--gpurec", given.gpurec]):
                return 1
        print("DuckDB:")
        duck = answers(gpurec.open(path))
        session = cluster.session(address, "gpurec test")
        print(f"Spark {session.version} at {address}:")
        on_spark = gpurec.open(path, spark=session)
        spark = answers(on_spark)
        said = []
        if job:
            expected = planted.said_by_ranks(report)
            said += planted.wrong(expected, report, job.truth)
            said += [f"Spark: {text}" for text in planted.differences(planted.said_by_dataset(on_spark), expected)]
            said += [f"DuckDB: {text}" for text in planted.differences(planted.said_by_dataset(gpurec.open(path)), expected)]
            print(f"gpurec ranks, Spark and DuckDB about the planted faults: {len(said)} differences")
        session.stop()
    differ = [name for name in QUESTIONS if duck[name] != spark[name]]
    for name in differ:
        first = next(((a, b) for a, b in zip(duck[name], spark[name]) if a != b), (len(duck[name]), len(spark[name])))
        print(f"{name} differs: DuckDB {first[0]}, Spark {first[1]}", file=sys.stderr)
    for text in said[:20]:
        print(text, file=sys.stderr)
    if not differ:
        print(f"all {len(QUESTIONS)} answers are equal")
    return 1 if differ or said else 0


if __name__ == "__main__":
    sys.exit(main())
