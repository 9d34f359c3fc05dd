"""Programs that run while gpurec attaches, detaches or is killed. In: a command. Out: a process that has printed
`ready`, a gpurec that has attached to it. Both have ended when the `with` block is left, also after an error.
"""

import contextlib
import subprocess
import time

from .frame import LONGEST, Failed, command_of, ended, tail

PIPES = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)


@contextlib.contextmanager
def waiting(program, *words):
    """A program of programs/ that has printed `ready` and waits for a line."""
    command = [str(word) for word in command_of(program, *words)]
    with subprocess.Popen(command, text=True, **PIPES) as process, ended(process):
        if process.stdout.readline().strip() != "ready":
            raise Failed(f"{program}.py ended early: {process.communicate()[1].strip()[-300:]}")
        yield process


@contextlib.contextmanager
def attached(machine, options, pid, trace):
    """gpurec that records this process."""
    trace.unlink(missing_ok=True)
    words = [machine.gpurec, "-q", *options, "-o", str(trace), "--pid", str(pid)]
    pipes = {**PIPES, "stdin": subprocess.DEVNULL}
    with subprocess.Popen([str(word) for word in words], text=True, **pipes) as recorder, ended(recorder):
        until_recording(trace, recorder)
        yield recorder


def until_recording(trace, recorder):
    limit = time.monotonic() + 60
    while not (trace.exists() and trace.stat().st_size):
        if recorder.poll() is not None or time.monotonic() > limit:
            raise Failed("gpurec does not attach to the program")
        time.sleep(0.1)
    time.sleep(1)


def recorded_while_running(machine, trace, options, program, *words):
    """Records a program from after its imports to its end, by --pid. Returns what it printed."""
    with waiting(program, *words) as process, attached(machine, options, process.pid, trace) as recorder:
        printed, said = finish(process, "go\n")
        finish(recorder)
    done = subprocess.CompletedProcess([], process.returncode, printed, said)
    if process.returncode or recorder.returncode:
        raise Failed(f"{program}.py ended with {process.returncode}, gpurec with {recorder.returncode}: {tail(done)}")
    return printed


def finish(process, text=None):
    try:
        return process.communicate(text, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise Failed(f"{process.args[0]} did not end within {LONGEST} s") from None
