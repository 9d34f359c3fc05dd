"""What an always-on recorder costs: `--all --budget 2 --metrics --last`. In: callers at a rate, 200 processes at once.
Out: samples and figures; (m).

It records all CUDA programs of the machine, so others that run meanwhile are in these figures.
"""

import http.client
import os
import socket
import subprocess
import time

from .frame import Failed, Figure, Sample, part
from .tools import FUNCTION, Programs, Recorder

RATES = {10_000: "<= 1", 300_000: "<= 25"}  # calls a second, with the target for the recorder: % of one CPU
SETTLE, SECONDS = 3, 12
ALWAYS_ON, BUDGET, NOTHING = "always on", "--budget 2 alone", "nothing"
RECORDER, TARGET, MEMORY = "% of a CPU, the recorder", "CPU ns a call, the caller", "MB resident, its rings too"
PROCESSES, SCRAPES = 200, 60


class AlwaysOn(Recorder):
    """A recorder with the options of gpurec.service, which serves its metrics when the constructor returns."""

    def __init__(self, bench, *more, last="60s"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.dumps = bench.folder / "dumps"
        self.dumps.mkdir(exist_ok=True)
        options = ["-q", "--all", "--budget", "2", "--metrics", self.port, "--last", last, *more]
        super().__init__(bench, [*options, "-o", self.dumps / "live.jsonl.zst"])
        limit = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < limit:
            try:
                self.get("/healthz")
                return
            except OSError:
                time.sleep(0.05)
        raise Failed(f"gpurec does not serve metrics: {self.errors.read_text()[-500:]}")

    def get(self, path):
        """(the answer, milliseconds)"""
        began = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        client.request("GET", path, headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        answer = client.getresponse()
        text = answer.read().decode()
        client.close()
        if answer.status != 200:
            raise Failed(f"gpurec answered {path} with {answer.status}")
        return text, 1000 * (time.monotonic() - began)

    def end(self):
        self.process.terminate()
        self.finish()


def always_on(bench):
    """The recorder reads each line again when it leaves the kept part. A short part brings that into the figures."""
    return AlwaysOn(bench, last=f"{SETTLE}s")


def budget_alone(bench):
    recorder = Recorder(bench, ["-q", "--all", "--budget", "2", "-o", bench.folder / "budget.jsonl"])
    limit = time.monotonic() + 30
    while not (bench.folder / "budget.jsonl").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    time.sleep(0.5)
    return recorder


def at_rate(bench, programs, rate, recorder):
    """Runs a caller at a rate. Returns its CPU seconds a call, and the recorder's share of a CPU once it settled."""
    seconds = SETTLE + SECONDS
    words = [programs.hits, "rate", FUNCTION, rate, seconds, programs.libraries["push"]]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
    time.sleep(SETTLE)
    began, before = time.monotonic(), recorder.cpu_now() if recorder else 0
    time.sleep(SECONDS - 1)
    share = (recorder.cpu_now() - before) / (time.monotonic() - began) if recorder else 0
    calls = int(process.stdout.read().split()[0])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"hits ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) / calls, share


@part("live", "(m) the always-on recorder: its CPU and memory, the caller's CPU, a scrape; six minutes", 3)
def live(bench):
    programs = Programs(bench)
    tools = {NOTHING: lambda: None, BUDGET: lambda: budget_alone(bench), ALWAYS_ON: lambda: always_on(bench)}
    for number in bench.each_round():
        for rate in RATES:
            for tool in bench.in_turn(number, list(tools)):
                recorder = tools[tool]()
                case = f"{rate:_} calls a second"
                each, share = at_rate(bench, programs, rate, recorder)
                yield Sample(case, tool, TARGET, 1e9 * each)
                if recorder:
                    recorder.process.terminate()
                    recorder.finish()
                    yield Sample(case, tool, RECORDER, 100 * share)
                    yield Sample(case, tool, MEMORY, recorder.peak_kb / 1000)
        yield from scraped(bench, programs)
    for rate, target in RATES.items():
        case = f"{rate:_} calls a second"
        yield Figure(f"% of a CPU, {case}", (case, ALWAYS_ON, RECORDER), target=target)
        yield Figure(f"MB resident, {case}", (case, ALWAYS_ON, MEMORY), target="<= 200")
        ours = (case, ALWAYS_ON, TARGET)
        yield Figure(f"the caller's CPU ÷ with --budget 2 alone, {case}", ours, over=(case, BUDGET, TARGET))
        yield Figure(f"the caller's CPU ÷ with nothing, {case}", ours, over=(case, NOTHING, TARGET))
    case = f"{PROCESSES} processes"
    yield Figure("ms a scrape, the median", (case, ALWAYS_ON, "ms a scrape"), target="<= 10")
    yield Figure("ms a scrape, the longest", (case, ALWAYS_ON, "ms, the longest"))


def series_of_callers(recorder):
    lines = recorder.get("/metrics")[0].splitlines()
    return sum(line.startswith("gpurec_launches_total{") and 'comm="hits"' in line for line in lines)


def scraped(bench, programs):
    """Scrapes the metrics of PROCESSES processes that make calls."""
    recorder = AlwaysOn(bench)
    words = [programs.hits, "rate", FUNCTION, 20, 3600, programs.libraries["push"]]
    callers = [bench.start(words, stdout=subprocess.DEVNULL) for _ in range(PROCESSES)]
    limit = time.monotonic() + 60
    while series_of_callers(recorder) < PROCESSES:
        if time.monotonic() > limit:
            raise Failed(f"not all of {PROCESSES} processes have series")
        time.sleep(0.5)
    times = []
    for _ in range(SCRAPES):
        # A scrape within 20 ms of another gets the same answer.
        time.sleep(0.1)
        text, ms = recorder.get("/metrics")
        times.append(ms)
    for caller in callers:
        caller.terminate()
        caller.wait()
    recorder.end()
    case = f"{PROCESSES} processes"
    yield Sample(case, ALWAYS_ON, "ms a scrape", sorted(times)[len(times) // 2])
    yield Sample(case, ALWAYS_ON, "ms, the longest", max(times))
    yield Sample(case, ALWAYS_ON, "kB a scrape", len(text) / 1000)
    yield Sample(case, ALWAYS_ON, "series", sum(not line.startswith("#") for line in text.splitlines()))
