#!/usr/bin/env python3
"""A job on two emulated machines whose clocks differ: what `gpurec ranks` says of the clocks, and what they are.

usage: guests.py --gpurec PATH --standins DIR [--kernel 6.12] [--steps N] [--keep DIR]

In: gpurec; the folder with the stand-in libcudart (OUT_DIR/demo of the build); scripts/vm. The machines share memory, in
which the ranks meet and in which a program measures the clocks before and after the job. As root; five minutes. Out: both
figures; exit status 1 if the true offset is outside of the error bar, or a rank is not complete.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import matrix

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of the second machine's clock: seconds ahead of the first one's, and how much faster it runs.
AHEAD, PPM = 7, 100
MACHINES = [("first", 0, 0, "0 1"), ("second", AHEAD, PPM, "2 3")]


def boot(options, scratch, program, name, ahead, ppm, ranks):
    """A machine that is running its ranks."""
    files = scratch / f"{name}-files"
    files.mkdir()
    settings = {"NAME": name, "AHEAD": ahead, "PPM": ppm, "RANKS": ranks, "WORLD": 4, "STEPS": options.steps}
    (files / "settings").write_text("".join(f"{key}='{value}'\n" for key, value in settings.items()))
    for path in [program, scratch / "pingpong", *options.standins.glob("lib*.so.*[0-9]")]:
        (files / path.name).write_bytes(path.read_bytes())
        (files / path.name).chmod(0o755)
    words = [
        ROOT / "scripts/vm", "--kernel", options.kernel, "--driver", "none", "--binary", options.gpurec, "--files", files,
        "--script", ROOT / "tests/launch/guests.sh", "--out", scratch / name, "--shared", scratch / "shared",
        "--timeout", "1200", "--memory", "1024",
    ]  # fmt: skip
    return subprocess.Popen([str(word) for word in words])


def measured(folder):
    """(offset, error, time) of the second clock, before and after the job."""
    return [tuple(int(word) for word in (folder / f"clocks-{number}").read_text().split()) for number in range(2)]


def true_at(clocks, at):
    """The second clock's offset at a time of the first one, on the line through both measurements, and its error."""
    (first, error, then), (second, later_error, later) = clocks
    return first + (second - first) * (at - then) / (later - then), max(error, later_error)


def compare(document, clocks):
    """What is wrong, if anything."""
    faults = [f"rank {rank['rank']}: {rank['reasons']}" for rank in document["ranks"] if not rank["complete"]]
    if len(document["ranks"]) != 4:
        faults.append(f"{len(document['ranks'])} ranks")
    hosts = {clock["host"]: clock for clock in document["clocks"]}
    found = hosts["second"] if hosts["first"]["reference"] else hosts["first"]
    sign = 1 if hosts["first"]["reference"] else -1
    truth, error = true_at(clocks, found["at_ns"])
    drift = (clocks[1][0] - clocks[0][0]) / (clocks[1][2] - clocks[0][2]) * 1e6
    print(f"measured: {truth / 1e6:.3f} ms, error {error / 1e6:.3f}; drift {drift:.1f} ppm")
    offset, own = sign * found["offset_ns"], sign * found["drift_ppm"]
    print(f"ranks:    {offset / 1e6:.3f} ms, error {found['error_ns'] / 1e6:.3f}; drift {own:.1f} ppm")
    print(f"          {found['bounds']} bounds; {found['notes']}")
    off = offset - truth
    if abs(off) > found["error_ns"] + error:
        faults.append(f"the offset is {off / 1e6:.3f} ms off, more than its error")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpurec", required=True, type=os.path.abspath)
    parser.add_argument("--standins", required=True, type=pathlib.Path)
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--keep", type=os.path.abspath, help="a folder for what the machines leave")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guests-") as scratch:
        scratch = pathlib.Path(options.keep or scratch)
        (scratch / "shared").mkdir(parents=True)
        program = pathlib.Path(matrix.build(str(scratch), str(options.standins.resolve())))
        source = ROOT / "fixtures/programs/pingpong.c"
        subprocess.run(["cc", "-O2", "-o", scratch / "pingpong", source], check=True)
        machines = [boot(options, scratch, program, *machine) for machine in MACHINES]
        statuses = [machine.wait() for machine in machines]
        if any(statuses):
            sys.exit(f"a machine failed: {statuses}")
        traces = [path for name, *_ in MACHINES for path in sorted((scratch / name).glob("*.jsonl"))]
        words = [options.gpurec, "ranks", "--json", *traces]
        document = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        faults = compare(document, measured(scratch / "first"))
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
