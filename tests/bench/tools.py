"""What the parts measure with: compiled programs, gpurec, bpftrace. In: fixtures/programs/bench, Debian's archive.
Out: commands that run, and what they used. Nothing is installed here: bpftrace is unpacked into a folder below target/
and runs there, with a mount namespace of its own.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from .frame import ROOT, Failed

SOURCES = ROOT / "fixtures/programs/bench"
FUNCTION = "cuStreamWaitEvent"
PROLOGUES = ["push", "compare", "endbr"]
TICK = os.sysconf("SC_CLK_TCK")


def cpus():
    return len(os.sched_getaffinity(0))


# --- C programs ------------------------------------------------------------------------------------------------


class Programs:
    """hits, empty, and the library in its three forms, compiled into the part's folder."""

    def __init__(self, bench):
        if os.uname().machine != "x86_64":
            raise Failed("the programs of the benchmark are for x86-64, and this is " + os.uname().machine)
        self.compiler = shutil.which("cc") or shutil.which("gcc")
        if not self.compiler:
            raise Failed("there is no C compiler here (apt-get install gcc libc6-dev)")
        self.folder = bench.folder
        self.hits = self.compile("hits", ["-pthread", "-ldl"])
        self.empty = self.compile("empty", ["-ldl"])
        self.libraries = {name: self.library(name) for name in PROLOGUES}

    def compile(self, name, flags):
        self.cc(["-O2", SOURCES / f"{name}.c", "-o", self.folder / name, *flags])
        return self.folder / name

    def library(self, prologue):
        path = self.folder / prologue / "libcuda.so.1"
        path.parent.mkdir()
        shape = [f"-DPROLOGUE_{prologue.upper()}", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1"]
        self.cc([*shape, SOURCES / "libcuda.c", "-o", path])
        return path

    def cc(self, words):
        done = subprocess.run([self.compiler, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{words[-1]} does not compile: {done.stderr.strip()[-500:]}")


# --- gpurec ----------------------------------------------------------------------------------------------------


class Recorder:
    """gpurec, started. What it said is in `said` at the end, its own CPU time (without its command's) in `cpu_s`."""

    def __init__(self, bench, options, command=(), cpu=None, binary=None, **more):
        self.errors = bench.folder / f"gpurec.{time.monotonic_ns()}.txt"
        words = [binary or bench.gpurec, *options, *(["--", *command] if command else [])]
        pin = {} if cpu is None else {"preexec_fn": lambda: os.sched_setaffinity(0, [cpu])}
        more = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **more}
        with open(self.errors, "w") as errors:
            self.process = bench.start(words, stderr=errors, text=True, **pin, **more)
        self.peak_kb = self.peak_anonymous_kb = self.files_kb = 0
        self.threads_s = {}
        self.watching = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        """How much memory it holds, fifty times a second. What is no ring and of a file changes little: rarer."""
        looks, proc = 0, Path(f"/proc/{self.process.pid}")
        while not self.watching.wait(0.02):
            try:
                status = (proc / "status").read_text()
                if looks % 5 == 0:
                    self.threads_s.update(threads_s(proc))
                if looks % 40 == 20:
                    self.files_kb = max(self.files_kb, files_kb((proc / "smaps").read_text()))
            except OSError:
                return
            kb = {name: int(value) for name, value in re.findall(r"(VmHWM|RssAnon):\s*(\d+)", status)}
            self.peak_kb = max(self.peak_kb, kb.get("VmHWM", 0))
            self.peak_anonymous_kb = max(self.peak_anonymous_kb, kb.get("RssAnon", 0))
            looks += 1

    @property
    def peak_beside_kb(self):
        """All that it held but the rings."""
        return self.peak_anonymous_kb + self.files_kb

    def cpu_now(self):
        """Its own CPU seconds as yet: all threads, no children."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICK

    def line(self):
        return self.process.stdout.readline().strip()

    def tell(self):
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def finish(self):
        """What its command printed and was not read yet."""
        if self.process.stdin:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        output = self.process.stdout.read()
        # A process that has ended and was not waited for still has its times.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        self.cpu_s = self.cpu_now()
        self.watching.set()
        self.watcher.join()
        code = self.process.wait()
        self.said = self.errors.read_text()
        self.errors.unlink()
        if code:
            raise Failed(f"gpurec ended with {code}: {self.said.strip()[-500:]}")
        return output


def threads_s(proc):
    """CPU seconds by thread: its number and its name."""
    seconds = {}
    for task in (proc / "task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # It has ended meanwhile.
        words = rest.split()
        seconds[task.name, name] = (int(words[11]) + int(words[12])) / TICK
    return seconds


def files_kb(smaps):
    """What it holds of files, the mappings of BPF maps left out."""
    total, counts = 0, False
    for line in smaps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            words = line.split(maxsplit=5)
            counts = len(words) > 5 and "bpf-map" not in words[5]
        elif counts and line.startswith(("Rss:", "Anonymous:")):
            kb = int(line.split()[1])
            total += kb if line.startswith("Rss:") else -kb
    return total


def recorded(bench, options, command, **more):
    """Records a command to its end: (what it printed, the recorder)."""
    recorder = Recorder(bench, options, command, **more)
    return recorder.finish(), recorder


def end_line(trace):
    """The last line of a trace."""
    with open(trace, "rb") as lines:
        lines.seek(0, os.SEEK_END)
        lines.seek(max(0, lines.tell() - (1 << 20)))
        last = lines.read().splitlines()[-1]
    end = json.loads(last)
    if end.get("type") != "end":
        raise Failed(f"{trace} was cut")
    return end


def site(bench, library):
    """How far behind a function's begin gpurec hooks it."""
    words = [bench.gpurec, "probes", "--lib", library, FUNCTION]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    found = re.search(rf"\b{FUNCTION}\s+0x[0-9a-f]+ \+(\d+)", done.stdout)
    if not found:
        raise Failed(f"gpurec probes does not say where it hooks {FUNCTION}: {done.stdout}{done.stderr}")
    return int(found[1])


class Empty:
    """An empty session program at all the places in a process that gpurec hooks, or would with `only`: the floor of
    what recording costs."""

    def __init__(self, bench, programs, pid, only):
        words = []
        for number, (library, addresses) in enumerate(sites_in(bench, pid, only).items()):
            listed = bench.folder / f"addresses.{number}"
            listed.write_text("".join(f"{address:x}\n" for address in addresses))
            words += [library, listed]
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        self.process = bench.start([programs.empty, "-a", *words], text=True, **pipes)
        if self.process.stdout.readline().strip() != "ready":
            raise Failed(f"no empty session program can be attached (Linux 6.13?): {self.process.stderr.read().strip()}")

    def finish(self):
        self.process.stdin.close()
        self.process.wait()


def sites_in(bench, pid, only):
    """By library of the process, where gpurec hooks its functions, or those that a pattern fits."""
    done = subprocess.run([bench.gpurec, "probes", *only, "--pid", str(pid)], capture_output=True, text=True)
    found, library = {}, None
    for line in done.stdout.splitlines():
        if line.startswith("/"):
            library = line.partition(" (")[0]
        elif place := re.match(r"\s+(?:__)?cu\w+\s+(0x[0-9a-f]+) \+(\d+)", line):
            found.setdefault(library, set()).add(int(place[1], 16) + int(place[2]))
    if not found:
        raise Failed(f"gpurec probes does not say where it hooks process {pid}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return found


# --- bpftrace --------------------------------------------------------------------------------------------------

# The lines of gpurec, as a user of bpftrace would have them. A pattern that fits two functions takes its cheaper hooks.
SCRIPT = r"""
uprobe:LIBRARY:cuStreamWaitEvent*
{
  @began[tid] = nsecs;
  printf("{\"ts\":%llu,WHO,\"phase\":\"B\",\"pid\":%d,\"tid\":%d,ARGS}\n", nsecs, pid, tid, arg0, arg1, arg2);
}
uretprobe:LIBRARY:cuStreamWaitEvent*
/@began[tid]/
{
  $took = nsecs - @began[tid];
  printf("{\"ts\":%llu,WHO,\"phase\":\"E\",\"pid\":%d,\"tid\":%d,\"duration_us\":%llu.%03llu,\"retval\":%d}\n",
    nsecs, pid, tid, $took / 1000, $took % 1000, retval);
  delete(@began[tid]);
}
"""
SCRIPT = SCRIPT.replace("WHO", r'\"type\":\"userspace\",\"name\":\"cuStreamWaitEvent\"')
SCRIPT = SCRIPT.replace("ARGS", r'\"args\":{\"hStream\":\"0x%llx\",\"hEvent\":\"0x%llx\",\"Flags\":%d}')

FETCH = """
source "$1/scripts/vm"
build_folder
[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || install_packages debian-archive-keyring
unpack_packages trixie "$VM/bpftrace" bpftrace bash coreutils >&2
echo "$VM/bpftrace"
"""

# The folder's own /sys, /dev, /proc, and the part's folder as /bench, for this command alone.
INSIDE = """
mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" &&
    mount --bind "$1" "$0/bench" && root=$0 && shift && exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin "$@"
"""


class Bpftrace:
    """Debian trixie's bpftrace, fetched."""

    def __init__(self, bench):
        self.bench = bench
        bench.say("fetching bpftrace, if it is not here yet")
        done = subprocess.run(["bash", "-c", FETCH, "bench", ROOT], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise Failed("bpftrace could not be fetched from Debian's archive: the reason is above")
        self.root = Path(done.stdout.split()[-1])
        bench.hand_over(self.root.parent)
        (self.root / "bench").mkdir(exist_ok=True)
        said = subprocess.run(self.command(["--version"]), capture_output=True, text=True)
        if said.returncode:
            raise Failed(f"bpftrace does not start: {said.stderr.strip()[-300:]}")
        bench.say(said.stdout.strip())

    def command(self, words, settings=()):
        world = ["unshare", "--mount", "--propagation", "private", "sh", "-c", INSIDE]
        return [*world, str(self.root), str(self.bench.folder), *settings, "bpftrace", *words]

    def start(self, libraries, output, settings=()):
        script = self.bench.folder / "calls.bt"
        inside = [f"/bench/{path.relative_to(self.bench.folder)}" for path in libraries]
        script.write_text("".join(SCRIPT.replace("LIBRARY", path) for path in inside))
        return Tracer(self, len(libraries), output, settings)


class Tracer:
    """bpftrace with its hooks attached."""

    def __init__(self, bpftrace, libraries, output, settings):
        self.output, self.errors = output, output.with_suffix(".err")
        words = ["-B", "full", "-o", f"/bench/{output.name}", "/bench/calls.bt"]
        with open(self.errors, "w") as errors:
            command = bpftrace.command(words, settings)
            self.process = bpftrace.bench.start(command, stdout=subprocess.DEVNULL, stderr=errors)
        limit = time.monotonic() + 30
        while self.links() < 2 * libraries:
            if self.process.poll() is not None or time.monotonic() > limit:
                raise Failed(f"bpftrace does not attach: {self.errors.read_text().strip()[-500:]}")
            time.sleep(0.05)

    def links(self):
        """How many of its hooks there are."""
        count = 0
        try:
            for path in Path(f"/proc/{self.process.pid}/fdinfo").iterdir():
                count += "probe_multi" in path.read_text()
        except OSError:
            pass
        return count

    def finish(self, drain=True):
        """Lets it write what it still has, and ends it."""
        size = -1
        while drain and self.process.poll() is None and size != self.output.stat().st_size:
            size = self.output.stat().st_size
            time.sleep(0.5)
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def lost(self):
        """What it says that it lost."""
        said = self.errors.read_text(errors="replace")
        with open(self.output, errors="replace") as lines:
            said += "".join(line for line in lines if line.startswith("Lost "))
        return sum(int(count) for count in re.findall(r"Lost (\d+) events", said))

    def lines(self):
        with open(self.output, "rb") as lines:
            return sum(line.startswith(b'{"ts"') for line in lines)
