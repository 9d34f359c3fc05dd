"""Whether functions of NVIDIA's libraries could be hooked by patching their entries, for a backend that does not
exist yet. In: a program that analyses a library (--analysis PATH; it is not in this tree), libcuda and libcudart as a
process of PyTorch has them. Out: what the program prints, and its counts as a table.
"""

import re
import sys

from .frame import Failed, part, run, tail

LOADED = """
import torch
torch.zeros(1, device="cuda")
print(open("/proc/self/maps").read())
"""
LIBRARIES = re.compile(r"/.*/(libcuda\.so|libcudart[-.])[^/]*$")
ROW = re.compile(r"^\s+(\d\d) (.+): (\d+)$")
# Counts worth comparing between versions, by the numbers of the program's rows.
COMPARED = {
    "00": "functions",
    "29": "cleanly patchable by a jump of 5 bytes",
    "49": "by 14 bytes",
    "03": "shorter than 5 bytes",
    "05": "begin with endbr64",
    "10": "address relative to the instruction in the first 5 bytes",
    "12": "branch in them",
    "22": "called directly in the library",
    "23": "jumped to in the library",
}


@part("inproc", "Functions that an in-process backend could patch")
def inproc(machine, section):
    with section.step("Analysis"):
        if not machine.analysis:
            raise Failed("--analysis names no program that analyses a library")
        done = run([sys.executable, "-c", LOADED], 60)
        if done.returncode:
            raise Failed(f"PyTorch does not run: {tail(done)}")
        found = libraries(done.stdout)
        if not found:
            raise Failed("a process of PyTorch has neither libcuda nor libcudart")
        texts = {}
        for path in found:
            # With a second word it also lists the functions that are not clean.
            done = run([machine.analysis, path, "exceptions"], 120)
            if done.returncode:
                section.not_measured(f"{path}: the analysis ended with {done.returncode}: {tail(done)}")
                continue
            texts[path] = done.stdout
        counted = {path: counts(text) for path, text in texts.items()}
        section.table(
            ["", *(path.rpartition("/")[2] for path in texts)],
            [[text, *(counted[path].get(number, 0) for path in texts)] for number, text in COMPARED.items()],
        )
        for text in texts.values():
            section.block("\n".join(line[:200] for line in text.splitlines()[-80:]))


def libraries(maps):
    found = {line.split(maxsplit=5)[5].strip() for line in maps.splitlines() if len(line.split(maxsplit=5)) > 5}
    return sorted(path for path in found if LIBRARIES.match(path))


def counts(text):
    rows = (ROW.match(line) for line in text.splitlines())
    return {row[1]: int(row[3]) for row in rows if row}
