"""Asking a dataset of 100 million calls (--events) with DuckDB. In: traces that make-job makes (crates/analysis/examples),
which gpurec exports, job after job, so that the JSONL of all never lies on the disk at once; DuckDB and pyarrow from
PyPI. Out: samples. The straggler of each job is the planted one, or it is no figure.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from .frame import ROOT, Failed, Figure, Sample, part
from .ranks import built
from .reading import run

JOBS, RANKS, LAUNCHES, STRAGGLER = 10, 32, 100, 5
A_STEP = LAUNCHES + 6  # calls of a rank in a step, about
CASE = "a large dataset"
ASK = """
import json, sys, gpurec
job = gpurec.open(sys.argv[1])
if sys.argv[2] == "calls":
    rows = job.sql("select count(*) as calls, count(distinct trace) as traces from gpurec_calls")
else:
    rows = getattr(job, sys.argv[2])()
json.dump(rows.to_dict("records") if hasattr(rows, "to_dict") else rows.to_pylist(), sys.stdout, default=str)
"""


@part("dataset", "DuckDB on 100 million calls (--events), made and exported; twenty minutes, 25 GB of disk", 1)
def dataset(bench):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "python/src"), engines(bench)])}
    make_job, folder = built(bench), bench.folder / "dataset"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seeds = range(1, JOBS + 1)
        made = list(pool.map(lambda seed: exported(bench, make_job, seed, folder), seeds))
    (there,), _ = asked(folder, "calls", environment)
    calls = there["calls"]
    if there["traces"] != JOBS * RANKS:
        raise Failed(f"the dataset has {there['traces']} traces of {JOBS * RANKS}")
    yield Sample(CASE, "export parquet", "million calls", calls / 1e6)
    yield Sample(CASE, "export parquet", "s of CPU for a million calls", sum(cpu for cpu, _ in made) / calls * 1e6)
    yield Sample(CASE, "export parquet", "JSONL, bytes a call", sum(size for _, size in made) / calls)
    written = sum(path.stat().st_size for path in folder.rglob("*.parquet"))
    yield Sample(CASE, "export parquet", "Parquet, bytes a call", written / calls)
    for _ in bench.each_round():
        for question in ["stragglers", "collectives", "completeness"]:
            rows, (cpu, wall, peak) = asked(folder, question, environment)
            if question == "stragglers":
                planted(rows)
            yield Sample(CASE, question, "s by the clock", wall)
            yield Sample(CASE, question, "s of CPU", cpu)
            yield Sample(CASE, question, "peak MB", peak / 1000)
    yield Figure("stragglers, s by the clock", (CASE, "stragglers", "s by the clock"), target="<= 30")


def engines(bench):
    """The folder where scripts/test puts DuckDB and pyarrow."""
    path = os.environ.get("GPUREC_ENGINES") or str(bench.built.parent / "engines")
    probe = subprocess.run([sys.executable, "-c", "import duckdb, pyarrow"], env={**os.environ, "PYTHONPATH": path})
    if probe.returncode:
        raise Failed(f"DuckDB and pyarrow are needed: python3 -m pip install --target {path} duckdb pyarrow")
    return path


def exported(bench, make_job, seed, dataset):
    """Makes a job's traces, exports them, and deletes them. Returns the export's CPU time and the bytes of the traces."""
    folder, steps = bench.folder / f"job-{seed}", max(20, bench.options.events // (JOBS * RANKS * A_STEP))
    bench.say(f"making job {seed} of {JOBS}")
    plan = {"ranks": RANKS, "steps": steps, "launches": LAUNCHES, "seed": seed, "straggler": STRAGGLER}
    words = [str(word) for key, value in plan.items() for word in (f"--{key}", value)]
    subprocess.run([make_job, folder, "--plain", *words], check=True)
    traces = sorted(folder.glob("*.jsonl"))
    size = sum(path.stat().st_size for path in traces)
    cpu, _, _ = run([bench.gpurec, "export", "--format", "parquet", "-o", dataset, *traces])
    shutil.rmtree(folder)
    return cpu, size


def asked(folder, question, environment):
    answer = folder.parent / f"{question}.json"
    with open(answer, "w") as out:
        took = run([sys.executable, "-c", ASK, folder, question], stdout=out, env=environment)
    return json.loads(answer.read_text()), took


def planted(rows):
    worst = {}
    for row in rows:
        worst.setdefault(row["job"], row["rank"])
    if len(worst) != JOBS or set(worst.values()) != {STRAGGLER}:
        raise Failed(f"the straggler of each job is rank {STRAGGLER}, and DuckDB says {worst}")
