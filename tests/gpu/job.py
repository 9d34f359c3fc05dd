"""Jobs of ranks. In: a job for programs/ranked.py, and who records it. Out: its folder of traces, what its ranks wrote,
what `gpurec ranks` says of it, and the CPU time of the recorders.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .frame import PROGRAMS, Failed, ended, run, tail
from .traces import lines

TICK = os.sysconf("SC_CLK_TCK")
LONGEST = 120
EACH, NODE = "a recorder for each rank", "one recorder for the node"


def gpus():
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True)
    count = int(done.stdout or 0)
    if count < 2:
        raise Failed(f"this machine has {count} GPU: the part needs two or more")
    return count


@dataclass
class Job:
    folder: Path
    ranks: int
    printed: str = ""
    said: str = ""
    status: int = 0
    seconds: float = 0.0
    recorders_cpu: dict = field(default_factory=dict)  # seconds, by process

    def traces(self):
        return sorted(self.folder.glob("*.jsonl*"))

    def wrote(self, name):
        """What each rank wrote, by rank."""
        return {rank: json.loads((self.folder / f"{name}-{rank}.json").read_text()) for rank in range(self.ranks)}


def words_of(machine, folder, ranks, what, recorder, options, suffix):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
    torchrun += ["--nproc-per-node", ranks]
    program = [sys.executable, "-B", PROGRAMS / "ranked.py", folder, *what]
    gpurec = [machine.gpurec, "-q", *options, "-o"]
    if recorder == EACH:
        return [*torchrun, *gpurec, folder / f"%h-%r{suffix}", "--", *program]
    if recorder == NODE:
        return [*gpurec, folder / f"node{suffix}", "--", *torchrun, *program]
    return [*torchrun, *program]


def job(machine, what, recorder=None, options=("--gpu",), ranks=None, suffix=".jsonl", expected=0):
    """Runs a job to its end. `what`: the words of ranked.py."""
    ranks = ranks or gpus()
    folder = machine.made / "job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777)
    made = Job(folder, ranks)
    words = [str(word) for word in words_of(machine, folder, ranks, what, recorder, options, suffix)]
    began = time.monotonic()
    with open(folder / "printed", "w") as out, open(folder / "said", "w") as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        with ended(process):
            while process.poll() is None:
                if time.monotonic() > began + LONGEST:
                    raise Failed(f"the job {what[0]} did not end within {LONGEST} s")
                made.recorders_cpu.update(cpu_of(machine.gpurec))
                time.sleep(0.1)
    made.seconds = time.monotonic() - began
    made.printed, made.said = (folder / "printed").read_text(), (folder / "said").read_text(errors="replace")
    made.status = process.returncode
    if expected is not None and made.status != expected:
        done = subprocess.CompletedProcess(words, made.status, made.printed, made.said)
        raise Failed(f"the job {' '.join(map(str, what))} ended with {made.status}: {tail(done)}")
    if recorder and not made.traces():
        raise Failed(f"the job {what[0]} has no trace: {made.said.strip()[-400:]}")
    return made


def cpu_of(binary):
    """The CPU time that the processes of a binary have used themselves, in seconds, by process."""
    used = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(folder / "exe") == binary:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
                used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICK
    return used


def end_of(trace):
    last = None
    for last in lines(trace):
        pass
    if not last or last.get("type") != "end":
        raise Failed(f"{trace.name} has no `end` line")
    return last


def ranks_of(machine, traces):
    """The document of `gpurec ranks`."""
    done = run([machine.gpurec, "ranks", "--json", *traces], 120)
    if done.returncode:
        raise Failed(f"gpurec ranks ended with {done.returncode}: {tail(done)}")
    return json.loads(done.stdout)
