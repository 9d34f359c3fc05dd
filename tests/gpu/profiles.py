"""Work on a GPU, as a trace has it and as torch.profiler exports it. In: lines of a trace, an export for Chrome. Out:
the same rows of both; which are in one alone, and by how much durations differ. Pure, except for reading an export.

torch.profiler (Kineto) demangles names by the C++ library's __cxa_demangle, which leaves those of more than 1,024 bytes
as they are, and replaces backslashes; gpurec has a demangler of its own and cuts long names. So names are compared
without blanks, backslashes as slashes, and a cut name by its beginning; c++filt demangles what Kineto leaves. What
then still differs, but has the same identifiers in the same order, `const` aside, is the same name in another spelling:
it counts as equal and is listed. (gpurec's demangler puts the `const` of a reference to a lambda into the lambda.)
"""

import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
DIRECTIONS = {"HtoD": "H2D", "HtoA": "H2D", "DtoH": "D2H", "AtoH": "D2H", "HtoH": "H2H", "PtoP": "P2P"}
CUT = "…"


@dataclass(frozen=True)
class Work:
    kind: str  # kernel, copy, set, graph
    name: str  # of a kernel; of a copy the direction
    us: float
    start: float  # µs, each source on a clock of its own
    correlation: int
    in_graph: bool = False


def of_trace(trace_lines, source=None):
    """The `gpu` lines, of one source or of all."""
    found = []
    for line in trace_lines:
        if line.get("type") != "gpu" or source not in (None, line["source"]):
            continue
        kind = line["kind"]
        name = line.get("direction") or "?" if kind == "copy" else line["name"]
        start = line["ts"] * 1e6
        found.append(Work(kind, name, line["duration_us"], start, line["correlation"], "node" in line))
    return found


def of_export(path):
    with open(path, encoding="utf-8", errors="replace") as text:
        return demangled(of_events(json.load(text)["traceEvents"]))


def of_events(events):
    """The events of an export that ran on the GPU."""
    found = []
    for event in events:
        kind = CATEGORIES.get(event.get("cat"))
        if not kind or event.get("ph") != "X":
            continue
        args = event.get("args") or {}
        name = {"copy": direction_of(event["name"]), "set": "memset"}.get(kind, event["name"])
        in_graph = bool(args.get("graph node id"))
        found.append(Work(kind, name, event["dur"], event["ts"], args.get("correlation"), in_graph))
    return found


def direction_of(name):
    """The direction in a name such as `Memcpy HtoD (Pageable -> Device)`."""
    word = re.match(r"Memcpy (\w+)", name)
    return DIRECTIONS.get(word[1], "D2D") if word else name


# --- names -------------------------------------------------------------------------------------------------------


def normal(name):
    return re.sub(r"\s+", "", name).replace("\\", "/")


def identifiers(name):
    return tuple(word for word in re.findall(r"\b[A-Za-z_]\w*", name) if word != "const")


def demangled(works):
    """The same works; c++filt, if there is one, demangles the names that Kineto leaves mangled."""
    left, tool = sorted({work.name for work in works if work.name.startswith("_Z")}), shutil.which("c++filt")
    if not left or not tool:
        return works
    done = subprocess.run([tool, "--no-recurse-limit"], input="\n".join(left), capture_output=True, text=True)
    names = dict(zip(left, done.stdout.splitlines()))
    return [replace(work, name=names.get(work.name, work.name)) for work in works]


def matched_names(ours, theirs):
    """For each of our names the same name of theirs; and the pairs that are spelled differently."""
    known = {normal(name): name for name in theirs}
    matched = {name: known[normal(name)] for name in ours if normal(name) in known}
    left, spelled = theirs - set(matched.values()), []
    for name in sorted(ours - set(matched)):
        found = next((other for other in sorted(left) if same_name(name, other)), None)
        if found is not None:
            left.discard(found)
            matched[name] = found
            spelled.append((name, found))
    return matched, spelled


def same_name(one, other):
    """`one` may be cut, also within an identifier."""
    if not one.endswith(CUT):
        return identifiers(one) == identifiers(other)
    words = identifiers(one.removesuffix(CUT))
    return bool(words) and words[:-1] == identifiers(other)[: len(words) - 1]


def with_same_names(ours, theirs):
    """Both by (kind, name), ours under their names; and the pairs that are spelled differently."""
    matched, spelled = matched_names({work.name for work in ours}, {work.name for work in theirs})
    renamed = [replace(work, name=matched.get(work.name, work.name)) for work in ours]
    return by_key(renamed), by_key(theirs), spelled


def by_key(works):
    found = defaultdict(list)
    for work in works:
        found[work.kind, normal(work.name)].append(work)
    return found


# --- comparisons -------------------------------------------------------------------------------------------------


@dataclass
class Row:
    kind: str
    name: str
    ours: int
    theirs: int
    our_us: float
    their_us: float

    @property
    def ratio(self):
        return self.our_us / self.their_us if self.their_us else None


def rows(ours, theirs):
    """A row for each name, the longest time first; and the pairs of names that are spelled differently."""
    mine, yours, spelled = with_same_names(ours, theirs)
    found = []
    for key in set(mine) | set(yours):
        one, other = mine.get(key, []), yours.get(key, [])
        name = (other or one)[0].name
        found.append(Row(key[0], name, len(one), len(other), total(one), total(other)))
    found.sort(key=lambda row: (-max(row.our_us, row.their_us), row.name))
    return found, spelled


def total(works):
    return sum(work.us for work in works)


def counts(works):
    """How many of each kind and name, to compare runs of one program."""
    return Counter((work.kind, normal(work.name)) for work in works)


@dataclass
class Pairs:
    """Records of the same work, from two sources that saw the same run."""

    paired: list  # (ours, theirs)
    only_ours: list
    only_theirs: list
    spelled: list

    def duration_errors(self):
        return sorted(abs(one.us - other.us) for one, other in self.paired)

    def start_errors(self):
        """How far starts differ, less the difference of the two clocks, in µs."""
        apart = sorted(one.start - other.start for one, other in self.paired)
        middle = apart[len(apart) // 2] if apart else 0
        return sorted(abs(one - middle) for one in apart)


def paired(ours, theirs):
    """By the number of the call, the kind and the name; several of one number, as of a graph, in order of time."""
    mine, yours, spelled = with_same_names(ours, theirs)
    pairs = Pairs([], [], [], spelled)
    for key in set(mine) | set(yours):
        one, other = by_call(mine.get(key, [])), by_call(yours.get(key, []))
        for number in set(one) | set(other):
            some, others = one.get(number, []), other.get(number, [])
            both = min(len(some), len(others))
            pairs.paired += zip(some[:both], others[:both])
            pairs.only_ours += some[both:]
            pairs.only_theirs += others[both:]
    return pairs


def by_call(works):
    found = defaultdict(list)
    for work in sorted(works, key=lambda work: work.start):
        found[work.correlation].append(work)
    return found


def quantile(ordered, share):
    """A quantile of values in order; None if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
