"""Whether it harms a program when gpurec with --gpu is killed or interrupted. In: a training that prints the same
losses in every run. Out: in how many runs the program printed the same although gpurec was killed (SIGKILL), or Ctrl-C
was typed, at a random instant; and how these runs ended.

Ctrl-C comes from a terminal, so it reaches both gpurec and the program. It ends half of the programs, as it would
without gpurec, and these have printed the beginning; the other half ignore it, and a second Ctrl-C ends gpurec alone.
"""

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .frame import Failed, command_of, part, run, tail

RUNS = 50
AT_ONCE = 10
STEPS = 150
LONGEST = 90
TERMINAL = Path(__file__).with_name("terminal.py")
BETWEEN = 0.3  # seconds between two Ctrl-C
CTRL_C = b"\x03"
KILL, END, DEAF = "SIGKILL of gpurec", "Ctrl-C", "Ctrl-C twice, the program ignores it"


@dataclass
class Done:
    how: str
    at: float  # seconds after `ready`
    status: int  # of gpurec; None: it never ended
    printed: list
    said: str
    took: float  # seconds from then to the end of what the program prints


@part("kills", f"{RUNS} SIGKILLs of gpurec and {RUNS} times Ctrl-C while a program trains")
def kills(machine, section):
    with section.step("Without gpurec, and recorded"):
        expected, seconds = reference(machine, section)
    rng = random.Random(27)
    for title, hows in [(f"{RUNS} SIGKILLs", [KILL] * RUNS), (f"{RUNS} times Ctrl-C", [END, DEAF] * (RUNS // 2))]:
        with section.step(title):
            plan = [(number, how, rng.uniform(0, seconds)) for number, how in enumerate(hows)]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                dones = list(pool.map(lambda one: one_run(machine, *one), plan))
            verdicts(section, dones, expected)
    with section.step("What is left"):
        left_behind(section)


def reference(machine, section):
    """What the program prints, and how long it prints when it is recorded beside others."""
    printed = machine.plain("losses", STEPS).split()
    again = machine.plain("losses", STEPS).split()
    if printed != again:
        raise Failed("the losses differ between two runs without gpurec: nothing can be compared")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plan = [(number, None, 0) for number in range(AT_ONCE)]
        dones = list(pool.map(lambda one: one_run(machine, *one), plan))
    whole = [done for done in dones if done.printed == printed and done.status == 0]
    text = f"{len(whole)} of {len(dones)} recorded runs print the {len(printed)} lines of a run without gpurec"
    section.check(len(whole) == len(dones), text)
    seconds = max(done.took for done in dones)
    section.say(f"{AT_ONCE} at once, a recorded run prints for {seconds:.1f} s; the instants lie in that time.")
    return printed, seconds


def one_run(machine, number, how, at):
    """Starts gpurec on a terminal of its own. `at` seconds after `ready` it kills gpurec or types Ctrl-C, by `how`."""
    trace = machine.made / f"kills-{number}.jsonl"
    trace.unlink(missing_ok=True)
    deaf = ["deaf"] if how == DEAF else []
    command = [machine.gpurec, "-q", "--gpu", "-o", trace, "--", *command_of("losses", STEPS, *deaf)]
    master, slave = pty.openpty()
    said, saying = os.pipe()
    words = [str(word) for word in [sys.executable, TERMINAL, saying, *command]]
    pipes = {"stdin": slave, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": [saying]}
    leader = subprocess.Popen(words, text=True, errors="replace", start_new_session=True, **pipes)
    os.close(slave)
    os.close(saying)
    alarm = threading.Timer(LONGEST, end_session, [leader.pid])
    alarm.start()
    try:
        with open(said) as channel:
            return watched(leader, channel, master, how, at)
    finally:
        alarm.cancel()
        end_session(leader.pid)
        leader.communicate()
        os.close(master)
        trace.unlink(missing_ok=True)


def watched(leader, channel, master, how, at):
    gpurec = int(channel.readline())
    first = leader.stdout.readline().strip()
    if how:
        time.sleep(at)
    began = time.monotonic()
    if how == KILL:
        with contextlib.suppress(ProcessLookupError):
            os.kill(gpurec, signal.SIGKILL)
    elif how:
        os.write(master, CTRL_C)
        if how == DEAF:
            time.sleep(BETWEEN)
            os.write(master, CTRL_C)
    # The program has the pipe too, so the pipe closes when the program ends, also when gpurec is gone.
    lines = [first, *leader.stdout.read().split()]
    took = time.monotonic() - began
    said, status = leader.stderr.read(), channel.readline().strip()
    return Done(how, at, int(status) if status else None, lines, said.strip()[-300:], took)


def end_session(leader):
    """Kills what is left of the session of a run."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(pid)) == leader:
                os.kill(int(pid), signal.SIGKILL)


# --- verdicts ----------------------------------------------------------------------------------------------------


def is_right(done, expected):
    """A killed gpurec and a second Ctrl-C must change nothing. A program that Ctrl-C ends has printed the beginning."""
    if done.how == END:
        return done.printed == expected[: len(done.printed)]
    return done.printed == expected


def verdicts(section, dones, expected):
    for how in dict.fromkeys(done.how for done in dones):
        some = [done for done in dones if done.how == how]
        right = [done for done in some if is_right(done, expected)]
        wrong = [done for done in some if not is_right(done, expected)]
        section.check(not wrong, f"{how}: {len(right)} of {len(some)} programs printed what they print without gpurec")
        for done in wrong[:3]:
            section.say(f"After {done.at:.2f} s: status {done.status}, {len(done.printed)} lines of {len(expected)}.")
            section.block("\n".join([*done.printed[-3:], done.said]))
        hung = sum(done.status is None for done in some)
        section.check(not hung, f"{how}: {hung} of {len(some)} gpurecs had to be killed because they did not end")
        statuses = sorted({str(done.status) for done in some})
        lines = sorted(len(done.printed) for done in some)
        section.say(f"gpurec ended with {', '.join(statuses)}; the programs printed {lines[0]} to {lines[-1]} lines.")


def left_behind(section):
    """No process of gpurec's is left, and none of the programs."""
    time.sleep(2)
    done = run(["ps", "-eo", "pid=,comm=,stat=,args="], 20)
    if done.returncode:
        raise Failed(f"ps ended with {done.returncode}: {tail(done)}")
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    left = [row for row in rows if len(row) > 3 and (row[1].startswith("gpurec") or "losses.py" in row[3])]
    section.check(not left, f"{len(left)} processes of gpurec or of the program are left. {left[:3] or ''}")
