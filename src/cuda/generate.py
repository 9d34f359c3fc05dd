#!/usr/bin/env python3
"""Makes functions.txt and errors.txt, the facts about CUDA this room carries.

usage: generate.py cuda_sigs.csv cuda_errors.csv

Run by hand when the tables of facts change; the build never runs it. Written
beside this script, sorted by name, one fact a line:

  functions.txt   name library(d driver, r runtime) category returns
  errors.txt      api(d, r) code name

A function without a category takes the one of the other versions of the same
base name (cuMemAlloc that of cuMemAlloc_v2) when they agree; "-" is none.
"""

import csv
import os
import sys

RETURNS = {
    "CUresult": "status",
    "cudaError_t": "status",
    "void": "void",
    "const char *": "pointer",
    "void **": "pointer",
}

# Exported by libcudart for code that nvcc generates, in no public table.
EXTRA = """
__cudaGetKernel r module status
__cudaInitModule r register other
__cudaLaunchKernel r launch status
__cudaLaunchKernel_ptsz r launch status
__cudaPopCallConfiguration r - status
__cudaPushCallConfiguration r - other
__cudaRegisterHostVar r register void
__cudaRegisterManagedVar r register void
""".split("\n")


def functions(path):
    rows = list(csv.DictReader(open(path)))
    known = {}
    for row in rows:
        if row["top_category"]:
            known.setdefault(row["base"], set()).add(row["top_category"])
    lines = {line.split()[0]: line for line in EXTRA if line}
    for row in rows:
        category = row["top_category"]
        of_base = known.get(row["base"], set())
        if not category and len(of_base) == 1:
            category = next(iter(of_base))
        library = {"libcuda": "d", "libcudart": "r"}[row["lib"]]
        returns = RETURNS.get(row["return"], "other")
        lines[row["function"]] = f"{row['function']} {library} {category or '-'} {returns}"
    # Code points, not a locale: Rust's binary search compares bytes.
    return [lines[name] for name in sorted(lines)]


def errors(path):
    api = {"CUresult": "d", "cudaError_t": "r"}
    rows = [(api[r["enum"]], int(r["value"]), r["name"]) for r in csv.DictReader(open(path))]
    return [f"{a} {code} {name}" for a, code, name in sorted(rows)]


def write(name, lines):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write("functions.txt", functions(sys.argv[1]))
    write("errors.txt", errors(sys.argv[2]))
