"""Call stacks of PyTorch programs. In: recordings with --stacks of inference.py, training.py and cnn.py. Out: how many
stacks, how deep, how many are cut and where; and for each role the lines that the trace names, against what the
programs say of their lines.
"""

import json
import statistics
from collections import Counter, defaultdict

from . import marks
from .frame import PROGRAMS, Failed, part
from .traces import calls, lines

NAMES = ["inference", "training", "cnn"]
TORCH = ("libtorch", "libc10")
TOP = 10


@part("sites", "Call sites: which line launched, copied, waited, allocated")
def sites(machine, section):
    for name in NAMES:
        with section.step(f"{name}.py"):
            recording = machine.record(name, name)
            section.say(f"It printed `{recording.printed.strip()}`.")
            found = calls(lines(recording.trace))
            if not found.total:
                raise Failed("the trace has no call with a stack")
            of_stacks(section, found)
            of_cut(section, found)
            of_lines(machine, section, recording.trace, found, PROGRAMS / f"{name}.py")
            recording.trace.unlink()


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def of_stacks(section, found):
    total, distinct = found.total, len(found.by_stack)
    depths = [len(found.stacks[number].frames) for number in found.by_stack if number in found.stacks]
    without = sum(found.without.values())
    python, python_stacks = found.share(lambda stack: stack.python())
    through, through_stacks = found.share(lambda stack: stack.reaches_python_through(TORCH))
    cut, cut_stacks = found.share(lambda stack: stack.cut)
    end = found.end or {}
    section.table(
        ["what", "calls", "share", "distinct stacks"],
        [
            ["with a stack", total, percent(total, total + without), distinct],
            ["outermost calls of the same functions without one", without, percent(without, total + without), "-"],
            ["with Python frames", python, percent(python, total), python_stacks],
            ["from libtorch or libc10 to Python", through, percent(through, total), through_stacks],
            ["cut", cut, percent(cut, total), f"{cut_stacks} ({percent(cut_stacks, distinct)})"],
        ],
    )
    quartiles = statistics.quantiles(depths, n=4, method="inclusive") if len(depths) > 1 else depths * 3
    section.say(
        f"Frames in a stack: {min(depths)} to {max(depths)}, quartiles {', '.join(f'{q:g}' for q in quartiles)}. "
        f"Lost records: {end.get('lost')}. Complete: {end.get('complete')} {end.get('incomplete_because') or ''}"
    )
    section.say(f"Lines of PyTorch's blocks with a stack of their own: {sum(found.blocks.values())}.")
    section.say("From the call outwards, through which libraries:")
    section.table(["libraries", "calls", "of all"], ends(found.count(lambda stack: stack.route()), total))
    if without:
        section.say(f"Without a stack: {Counter(found.without).most_common(8)}.")


def of_cut(section, found):
    """Where native frames end, of stacks that are cut and of those that have no Python frames."""
    cut = found.count(lambda stack: stack.native_end(), lambda stack: stack.cut)
    section.say("Stacks that are cut, by the outermost native frame that they have:")
    section.table(["native part ends at", "calls", "of all"], ends(cut, found.total))
    modules = found.count(lambda stack: (stack.modules() or ["-"])[-1], lambda stack: stack.cut)
    section.table(["the same, by module", "calls", "of all"], ends(modules, found.total))
    silent = found.count(lambda stack: stack.native_end(), lambda stack: not stack.python())
    section.say("Stacks without Python frames, by their outermost frame (threads of PyTorch's own have none):")
    section.table(["outermost frame", "calls", "of all"], ends(silent, found.total))


def ends(counted, total):
    shown = [[text, calls, percent(calls, total)] for text, calls in counted[:TOP]]
    rest = sum(calls for _, calls in counted[TOP:])
    return shown + ([[f"{len(counted) - TOP} others", rest, percent(rest, total)]] if rest else [])


def rows_of(report, found, program):
    """Rows of `report stacks --json` for one role: by line of the program [calls, whether libraries made them all, a
    stack]; and the calls whose stacks have no line of it, by their outermost frame."""
    by_line, elsewhere = {}, Counter()
    for row in report["stacks"]:
        stack = found.stacks.get(row["stack"])
        line = stack.line_in(program) if stack else None
        if line is None:
            elsewhere[stack.text().splitlines()[-1] if stack and stack.frames else "?"] += row["calls"]
            continue
        known = by_line.setdefault(line, [0, True, stack])
        known[0] += row["calls"]
        if not marks.is_set_up(stack.modules()):
            known[1], known[2] = False, stack
    return by_line, elsewhere


def of_lines(machine, section, trace, found, program):
    text = program.read_text()
    source, marked = text.splitlines(), marks.marks(text)
    rows, examples, others = [], {}, defaultdict(Counter)
    roles = [*marks.ROLES, *([marks.BLOCK] if found.blocks else [])]
    for role in roles:
        report = json.loads(machine.read("report", "stacks", "--role", role, "--by", "count", "--json", trace))
        if not report.get("stacks"):
            section.check(False, f"no call of role {role} has a stack")
            continue
        by_line, others[role] = rows_of(report, found, program)
        for line, (count, by_library, stack) in by_line.items():
            rows.append((role, line, count, by_library))
            examples[role, line] = stack
    verdicts = marks.judged(marked, rows)
    for role in roles:
        show_role(section, role, [verdict for verdict in verdicts if verdict.role == role], others[role], source)
    wrong = [verdict for verdict in verdicts if verdict.is_wrong]
    named = "; ".join(f"{verdict.role} at line {verdict.line}: {verdict.text}" for verdict in wrong)
    section.check(not wrong, f"{len(verdicts)} pairs of role and line of {program.name}, {len(wrong)} wrong. {named}")
    for verdict in wrong[:5]:
        stack = examples.get((verdict.role, verdict.line))
        if stack:
            section.say(f"A stack of {verdict.role} at line {verdict.line}:")
            section.block(stack.text())


def show_role(section, role, verdicts, others, source):
    verdicts.sort(key=lambda verdict: (not verdict.is_wrong, -verdict.calls))
    wrong = sum(verdict.is_wrong for verdict in verdicts)
    shown = verdicts[: max(TOP, wrong)]
    section.say(f"Role {role}: {sum(verdict.calls for verdict in verdicts)} calls from lines of the program.")
    section.table(
        ["calls", "line", "its text", "verdict"],
        [
            [verdict.calls, verdict.line, f"`{source[verdict.line - 1].strip()[:90]}`", verdict.text]
            for verdict in shown
        ],
    )
    if others:
        named = ", ".join(f"{count} under {text}" for text, count in others.most_common(4))
        section.say(f"Calls whose stacks have no line of the program: {sum(others.values())}: {named}.")
