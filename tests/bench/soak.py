"""A long run of the always-on recorder: programs come and go; some fail, crash or are killed. In: the stand-in program
and libraries of the demo, which count their own calls; --minutes. Out: how the recorder's memory, descriptors, BPF
objects and files develop, and whether its counters equal the programs' own; (n).
"""

import re
import shutil
import subprocess
import time
from pathlib import Path

from .frame import Failed, Figure, Sample, part
from .live import AlwaysOn
from .tools import files_kb

SAMPLE_S, SCRAPE_S, PAUSE_S = 5, 10, 0.4
CASE, TOOL = "programs come and go", "always on"
# Started one after the other. A program that crashes or is killed writes no counts of its own.
PROGRAMS = [
    ["--loops", "10"],
    ["--loops", "5", "--threads", "3", "--fork"],
    ["--loops", "5", "--exit", "3"],
    ["--loops", "5", "--crash"],
    ["--loops", "1000000"],
]
KILLED = PROGRAMS[4]
# Microseconds of a stand-in kernel. Calls of the slow programs cost less than the budget, so each is counted. In the
# last third of the time programs are fast, and the budget gives functions up.
SLOW, FAST, HELD = 1000, 5, 2_000_000
SLOW_PART = 2 / 3
SERIES = re.compile(r"(gpurec_\w+?)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Standin:
    """The demo's program and libraries, copied while a demo waits."""

    def __init__(self, bench):
        self.bench, self.folder, self.counts = bench, bench.folder / "standin", bench.folder / "counts"
        self.counts.mkdir()
        demo = bench.start(
            [bench.gpurec, "demo", "-q", "--summary-only", "--", "--sleep", "600000"],
            env={"TMPDIR": str(bench.folder), "PATH": "/usr/bin:/bin"},
            stderr=subprocess.DEVNULL,
        )
        limit = time.monotonic() + 30
        while not (found := [path for path in bench.folder.glob("gpurec-demo-*/gpurec-demo") if is_used(path)]):
            if demo.poll() is not None or time.monotonic() > limit:
                raise Failed("gpurec demo does not start its program")
            time.sleep(0.1)
        shutil.copytree(found[0].parent, self.folder)
        demo.terminate()
        demo.wait()
        self.program = self.folder / "gpurec-demo"

    def start(self, words, kernel_us, counts="%p"):
        environment = {"STANDIN_COUNTS": f"{self.counts}/{counts}", "STANDIN_KERNEL_US": str(kernel_us)}
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return self.bench.start([self.program, *words], env=environment, **silent)

    def taken(self):
        """Driver and runtime calls of each process that wrote all its counts. Returns each process once."""
        made = {}
        for path in self.counts.glob("*.cudart"):
            driver = path.with_suffix(".cuda")
            if driver.exists():
                made[path.stem] = {"driver": calls_in(driver), "runtime": calls_in(path)}
                path.unlink()
                driver.unlink()
        return made


def is_used(path):
    try:
        return any(Path(one).resolve() == path for one in Path("/proc").glob("[0-9]*/exe"))
    except OSError:
        return False


def calls_in(path):
    return sum(int(line.split()[1]) for line in path.read_text().splitlines())


class Counters:
    """The last figures that each process had in a scrape."""

    def __init__(self):
        self.calls, self.unobserved, self.total, self.lost = {}, set(), 0, 0

    def take(self, text):
        total = 0
        for line in text.splitlines():
            found = SERIES.fullmatch(line)
            if not found:
                continue
            name, labels, value = found[1], dict(LABEL.findall(found[2] or "")), float(found[3])
            pid = labels.get("pid")
            if name == "gpurec_calls_total":
                total += value
                self.calls.setdefault(pid, {})[labels["api"]] = int(value)
            elif name == "gpurec_unobserved_seconds_total" and value:
                self.unobserved.add(pid)
            elif name == "gpurec_events_lost_total":
                self.lost = int(value)
        fell = total < self.total
        self.total = total
        return fell


def held(recorder):
    """The resources that the recorder holds now, by name."""
    proc = Path(f"/proc/{recorder.process.pid}")
    status = (proc / "status").read_text()
    kb = {name: int(value) for name, value in re.findall(r"(VmRSS|RssAnon):\s*(\d+)", status)}
    objects = {"map_id": 0, "prog_id": 0, "link_id": 0}
    fds = 0
    for info in (proc / "fdinfo").iterdir():
        try:
            text = info.read_text()
        except OSError:
            continue  # It was closed meanwhile.
        fds += 1
        kind = next((kind for kind in ["link_id", "prog_id", "map_id"] if f"{kind}:" in text), None)
        if kind:
            objects[kind] += 1
    files = [path for path in recorder.dumps.rglob("*") if path.is_file()]
    return {
        "MB resident, its rings too": kb["VmRSS"] / 1000,
        "MB beside its rings": (kb["RssAnon"] + files_kb((proc / "smaps").read_text())) / 1000,
        "descriptors": fds,
        "BPF maps": objects["map_id"],
        "BPF programs": objects["prog_id"],
        "BPF links": objects["link_id"],
        "files": len(files),
        "MB of files": sum(path.stat().st_size for path in files if path.exists()) / 1e6,
    }


@part("soak", "(n) a long run of the always-on recorder: --minutes [30]", 1)
def soak(bench):
    standin = Standin(bench)
    recorder = AlwaysOn(bench, "--dump-on", "exit,error,hang=30", "--keep", "200MB")
    holder = standin.start(KILLED, HELD, "holder")
    time.sleep(5)
    made, counters, samples, started, fell = {}, Counters(), [], 0, 0
    began = sampled = scraped = time.monotonic()
    seconds = 60 * bench.options.minutes
    while (now := time.monotonic()) < began + seconds:
        words = PROGRAMS[started % len(PROGRAMS)]
        program = standin.start(words, SLOW if now < began + SLOW_PART * seconds else FAST)
        started += 1
        time.sleep(PAUSE_S)
        if words is KILLED:
            program.kill()
        program.wait()
        if time.monotonic() >= sampled + SAMPLE_S:
            sampled += SAMPLE_S
            samples.append(held(recorder))
        if time.monotonic() >= scraped + SCRAPE_S:
            scraped += SCRAPE_S
            fell += counters.take(recorder.get("/metrics")[0])
            made |= standin.taken()
        if recorder.process.poll() is not None:
            raise Failed(f"gpurec ended: {recorder.errors.read_text()[-500:]}")
    time.sleep(1)
    fell += counters.take(recorder.get("/metrics")[0])
    made |= standin.taken()
    holder.kill()
    holder.wait()
    recorder.end()
    yield from developed(samples)
    yield from compared(bench, made, counters)
    yield Sample(CASE, TOOL, "programs", started)
    yield Sample(CASE, TOOL, "scrapes in which the sum of calls fell", fell)
    yield Sample(CASE, TOOL, "dumps that cannot be read", unreadable(bench, recorder.dumps))
    yield from figures()


def developed(samples):
    """Each quantity in the second and the last quarter. In the first, the recorder may still be filling its minute."""
    quarter = len(samples) // 4
    if quarter < 3:
        raise Failed("--minutes is too short for samples")
    for what in samples[0]:
        values = [one[what] for one in samples]
        for name, part_of in [("second quarter", values[quarter : 2 * quarter]), ("last quarter", values[-quarter:])]:
            yield Sample(name, TOOL, what, sorted(part_of)[len(part_of) // 2])
        yield Sample("the most", TOOL, what, max(values))


def compared(bench, made, counters):
    """Compares each process's counters with its own counts. Lower ones need a counted reason: unobserved, lost."""
    equal = lower = wrong = 0
    for pid, calls in made.items():
        seen = {api: counters.calls.get(pid, {}).get(api, 0) for api in calls}
        if seen == calls:
            equal += 1
        elif all(seen[api] <= calls[api] for api in calls) and (pid in counters.unobserved or counters.lost):
            lower += 1
        else:
            wrong += 1
            bench.say(f"process {pid} made {calls}, and gpurec counted {seen}")
    yield Sample(CASE, TOOL, "processes compared", len(made))
    yield Sample(CASE, TOOL, "processes with equal counters", equal)
    yield Sample(CASE, TOOL, "processes with lower counters, and the reason", lower)
    yield Sample(CASE, TOOL, "processes with wrong counters", wrong)
    yield Sample(CASE, TOOL, "records lost", counters.lost)


def unreadable(bench, dumps):
    count = 0
    for path in sorted(dumps.glob("*.jsonl.zst")):
        words = [str(bench.gpurec), "summary", "--json", str(path)]
        count += subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0
    return count


def figures():
    for what in ["MB resident, its rings too", "MB beside its rings"]:
        last, second = ("last quarter", TOOL, what), ("second quarter", TOOL, what)
        yield Figure(f"{what}: last quarter less the second", last, less=second, target="<= 10")
    yield Figure("MB resident, the most", ("the most", TOOL, "MB resident, its rings too"), target="<= 200")
    for what, most in [("descriptors", 8), ("BPF maps", 0), ("BPF programs", 0), ("BPF links", 4)]:
        last, second = ("last quarter", TOOL, what), ("second quarter", TOOL, what)
        yield Figure(f"{what}: last quarter less the second", last, less=second, target=f"<= {most}")
    for what, target in [
        ("processes with equal counters", ""),
        ("processes with lower counters, and the reason", ""),
        ("processes with wrong counters", "<= 0"),
        ("scrapes in which the sum of calls fell", "<= 0"),
        ("dumps that cannot be read", "<= 0"),
    ]:
        yield Figure(what, (CASE, TOOL, what), target=target)
