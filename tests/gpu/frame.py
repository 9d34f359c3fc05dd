"""The frame of scripts/gpu-report. In: what the parts find. Out: a file report-PART.md for each part, written anew
with every line, and report.md, which joins those that there are.

A part is a function with @part, made of steps. The report names a step that fails; the next step runs all the same.
Nothing here knows what is measured.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
PARTS = {}
ALONE = ["cost", "sites", "blocks", "accuracy", "trace"]
ALONE += ["lane", "account", "tap", "clock", "idle", "kills", "inproc", "gpu-trace", "lane-cost"]
SEVERAL = ["collectives", "stragglers", "stopped", "ranks-cost", "ranks-trace"]  # need several GPUs
SUMMARY = "=== TRACE SUMMARY ==="
LONGEST = 150  # seconds for one recording, reading excluded


class Failed(Exception):
    """Something could not be measured. The text says why, and what to do about it."""


@dataclass
class Part:
    run: object
    title: str


def part(name, title):
    def add(function):
        PARTS[name] = Part(function, title)
        return function

    return add


class Section:
    """The report of one part."""

    def __init__(self, out, name, title, about):
        self.out, self.name, self.about = out, name, about
        self.path = out / f"report-{name}.md"
        self.lines = [f"## {title}", "", about]
        self.wrong, self.failed = 0, 0
        self.write()

    def say(self, *paragraphs):
        for text in paragraphs:
            self.lines += ["", text]
        self.write()

    def table(self, head, rows):
        self.lines += ["", line_of(head), line_of("---" for _ in head)]
        self.lines += [line_of(row) for row in rows]
        self.write()

    def block(self, text):
        self.say(f"```\n{text.rstrip()}\n```")

    def check(self, holds, text):
        """A statement about gpurec that is true or not."""
        self.wrong += not holds
        self.say(f"{'ok' if holds else '**WRONG**'}: {text}")

    @contextlib.contextmanager
    def step(self, title):
        """Runs a step. The report names an error in it, and the part continues."""
        self.say(f"### {title}")
        print(f"gpu-report: {self.name}: {title}", file=sys.stderr)
        began = time.monotonic()
        try:
            yield
        except Exception as failed:
            self.caught(failed)
        print(f"gpu-report: {self.name}: {title}: {time.monotonic() - began:.0f} s", file=sys.stderr)

    def caught(self, failed):
        if isinstance(failed, Failed):
            self.not_measured(str(failed))
            return
        traceback.print_exception(failed)
        place = traceback.extract_tb(failed.__traceback__)[-1]
        self.not_measured(f"{type(failed).__name__} at {Path(place.filename).name}:{place.lineno}: {failed}")

    def not_measured(self, text):
        self.failed += 1
        self.say(f"**NOT MEASURED**: {text}")
        print(f"gpu-report: {self.name}: NOT MEASURED: {text}", file=sys.stderr)

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")
        join(self.out)


def line_of(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def join(out):
    """report.md, of the sections that there are."""
    order = [out / f"report-{name}.md" for name in ALONE + SEVERAL]
    sections = [path.read_text() for path in order if path.exists()]
    missing = [name for name in ALONE if not (out / f"report-{name}.md").exists()]
    said = "".join(sections)
    head = "# gpurec on a GPU\n\n"
    head += f"Not measured: {said.count('**NOT MEASURED**')}. Wrong: {said.count('**WRONG**')}."
    head += f" Parts that did not run: {', '.join(missing)}.\n\n" if missing else "\n\n"
    (out / "report.md").write_text(head + "\n".join(sections))


@dataclass
class Recording:
    trace: Path
    status: int
    printed: str
    said: str


@dataclass
class Machine:
    """What the parts work with: the binaries, the folder of the report, and a folder for what is large."""

    gpurec: str
    before: str
    out: Path
    analysis: str = None
    made: Path = None

    def __enter__(self):
        self.out.mkdir(parents=True, exist_ok=True)
        self.made = Path(tempfile.mkdtemp(prefix="made.", dir=self.out))
        self.made.chmod(0o755)  # a program that sudo runs as its user may look
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.made, ignore_errors=True)

    def record(self, name, program, *words, options=("--stacks",), expected=0, suffix=".jsonl", loud=False):
        """Records a program of programs/, in a process of its own. `loud`: with what gpurec says before its summary."""
        trace = self.made / f"{name}{suffix}"
        trace.unlink(missing_ok=True)
        quiet = [] if loud else ["-q"]
        done = run([self.gpurec, *quiet, *options, "-o", trace, "--", *command_of(program, *words)], LONGEST)
        done.stderr = done.stderr.partition(SUMMARY)[0]
        recording = Recording(trace, done.returncode, done.stdout, done.stderr)
        if done.returncode != expected:
            raise Failed(f"{program}.py, recorded, ended with {done.returncode}, not {expected}: {tail(done)}")
        if not done.stdout.strip():
            raise Failed(f"{program}.py, recorded, printed nothing: {tail(done)}")
        if not trace.exists():
            raise Failed(f"gpurec wrote no trace of {program}.py: {tail(done)}")
        return recording

    def plain(self, program, *words):
        """What a program of programs/ prints when it is not recorded."""
        done = run(command_of(program, *words), LONGEST)
        if done.returncode or not done.stdout.strip():
            raise Failed(f"{program}.py ended with {done.returncode}: {tail(done)}")
        return done.stdout

    def read(self, *words):
        """What a command of gpurec prints that reads a trace."""
        done = run([self.gpurec, *words], 120)
        if done.returncode:
            raise Failed(f"gpurec {' '.join(map(str, words))} ended with {done.returncode}: {tail(done)}")
        return done.stdout


def command_of(program, *words):
    return [sys.executable, "-B", PROGRAMS / f"{program}.py", *words]


def tail(done):
    """The last lines that a command printed."""
    return " / ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-4:])[-600:]


def run(words, seconds):
    """Runs a command to its end, or ends it after that many seconds. gpurec ends what it has started."""
    words = [str(word) for word in words]
    pipes = dict.fromkeys(["stdout", "stderr"], subprocess.PIPE)
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, text=True, errors="replace", **pipes)
    name = " ".join(words)[-200:]
    try:
        with ended(process):
            printed, said = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} did not end within {seconds} s") from None
    return subprocess.CompletedProcess(words, process.returncode, printed, said)


@contextlib.contextmanager
def ended(process):
    """A process that has ended afterwards, however. It is asked first: gpurec ends what it has started, and the
    benchmark writes what it has."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
