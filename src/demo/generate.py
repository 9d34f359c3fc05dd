#!/usr/bin/env python3
"""Writes functions.tsv: which functions the stand-in libraries export.

    python3 src/demo/generate.py cuda_sigs.csv > src/demo/functions.tsv

The input is a table of the CUDA API (one row a function: library, whether the
real library exports it, arguments with their kind and register). Only facts are
taken: names, kinds, places. The build reads functions.tsv, never the input.

Columns of functions.tsv:
  library    driver or runtime
  name       the exported symbol
  prologue   how the stand-in's function begins on x86-64 (see prologue() below)
  returns    int, void, pointer or struct
  arguments  kind@place of each, in order, x86-64 places at entry ("-" if none)
"""

import csv
import sys

# Exported by the real runtime, called by every program that nvcc builds (the
# <<<>>> syntax), but in no public header, so missing in the input.
UNDECLARED = [
    ("runtime", "__cudaPopCallConfiguration", "int",
     "out-scalar@rdi out-scalar@rsi out-scalar@rdx out-handle@rcx"),
    ("runtime", "__cudaPushCallConfiguration", "int",
     "struct@rdi+rsi struct@rdx+rcx usize@r8 handle@r9"),
]


def prologue(library, index):
    """The real runtime begins every export with `push %rbp`, as most of libcuda
    580 does; libcuda 535 begins them with a compare and a conditional jump. Of
    every 16 driver functions here, in order of name: 3 cmp-je, 1 cmp-jne,
    1 endbr, 1 sub, and 10 push."""
    if library == "runtime":
        return "push"
    kinds = {0: "cmp-je", 3: "cmp-jne", 5: "endbr", 6: "cmp-je", 10: "sub", 12: "cmp-je"}
    return kinds.get(index % 16, "push")


def returns(c_type):
    if c_type in ("CUresult", "cudaError_t"):
        return "int"
    if c_type == "void":
        return "void"
    return "pointer" if c_type.endswith("*") else "struct"


def arguments(text):
    fields = [a.strip().split(":") for a in text.split("|") if a.strip()]
    return " ".join(f"{kind}@{place}" for _, _, kind, place, *_ in fields) or "-"


def main():
    if len(sys.argv) != 2:
        sys.exit("give one argument: the CSV of CUDA signatures")
    rows = list(UNDECLARED)
    with open(sys.argv[1], newline="") as file:
        for row in csv.DictReader(file):
            exported = next(v for k, v in row.items() if k.startswith("exported_by"))
            args = next(v for k, v in row.items() if k.startswith("args("))
            if exported == "1":
                library = "driver" if row["lib"] == "libcuda" else "runtime"
                rows.append((library, row["function"], returns(row["return"]), arguments(args)))
    # Byte order, so that the libraries can search the table by bisection.
    rows.sort(key=lambda r: (r[0], r[1].encode()))
    print("# library\tname\tprologue\treturns\targuments (written by generate.py)")
    seen = {"driver": 0, "runtime": 0}
    for library, name, result, args in rows:
        print(library, name, prologue(library, seen[library]), result, args, sep="\t")
        seen[library] += 1


main()
