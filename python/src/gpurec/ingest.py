"""Converts a folder of traces to a dataset: python -m gpurec.ingest FOLDER DIR [--spark MASTER].

In: FOLDER/**/*.jsonl and *.jsonl.zst, and the program gpurec (or gpurec-read). Out: the dataset DIR, by
`gpurec export --format parquet`. With --spark each trace is a task of a Spark cluster, whose machines all see both
folders and have the program. Exit status 1 if a trace could not be converted; the others are.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterable


def traces(folder: Path) -> list[str]:
    """Those that are regular files, and links to such. Others may have put a FIFO there, or a link to a device, which
    never ends."""
    found, odd = [], []
    for path in sorted(path for pattern in ("*.jsonl", "*.jsonl.zst") for path in folder.rglob(pattern)):
        if os.path.isfile(path):
            found.append(os.path.realpath(path))
        else:
            odd.append(str(path.relative_to(folder)))
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        print(
            f"ingest: {clean(str(folder))}: {clean(odd[0])}{more} left out, since only regular files are read",
            file=sys.stderr,
        )
    return sorted(found)


def clean(name: str) -> str:
    """A file name without what could control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in name)


def convert(program: str, trace: str, dataset: str) -> tuple[str, bool, str]:
    """Converts one trace. Returns it, whether that succeeded, and what the program said."""
    command = [program, "export", "--format", "parquet", "-o", dataset, trace]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        return trace, False, f"{program} cannot be run ({error}): name it with --gpurec"
    said = done.stdout.strip()
    return trace, done.returncode == 0, said or (f"exit status {done.returncode}" if done.returncode else "")


def by_spark(master: str, program: str, names: list[str], dataset: str) -> Iterable[tuple[str, bool, str]]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(master).appName("gpurec.ingest").getOrCreate()

    # A function of this module would need this package on the cluster's machines.
    def task(trace: str) -> tuple[str, bool, str]:
        import subprocess

        command = [program, "export", "--format", "parquet", "-o", dataset, trace]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except OSError as error:
            return trace, False, f"{program} cannot be run ({error}): name it with --gpurec"
        said = done.stdout.strip()
        return trace, done.returncode == 0, said or (f"exit status {done.returncode}" if done.returncode else "")

    try:
        return list(session.sparkContext.parallelize(names, len(names)).map(task).collect())
    finally:
        session.stop()


def main(words: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m gpurec.ingest", description=__doc__)
    options.add_argument("folder", type=Path, metavar="FOLDER")
    options.add_argument("dataset", type=Path, metavar="DIR")
    options.add_argument("--spark", metavar="MASTER", help="a Spark cluster, as spark://HOST:7077")
    options.add_argument("--gpurec", default="gpurec", metavar="PATH", help="the program [gpurec]")
    given = options.parse_args(words)
    names = traces(given.folder)
    if not names:
        print(f"ingest: there is no trace in {clean(str(given.folder))}: name a folder of .jsonl or .jsonl.zst files", file=sys.stderr)
        return 1
    dataset = str(given.dataset.resolve())
    # The cluster's machines run it in other folders.
    program = os.path.abspath(given.gpurec) if os.path.dirname(given.gpurec) else given.gpurec
    if given.spark:
        results = by_spark(given.spark, program, names, dataset)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = pool.map(lambda name: convert(program, name, dataset), names)
    failed = 0
    for name, is_there, said in results:
        failed += not is_there
        if said:
            print(f"ingest: {clean(name)}: {said}", file=sys.stderr)
    print(f"ingest: {len(names) - failed} of {len(names)} traces are in {given.dataset}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
