"""What a program says that its lines do, against what a trace says. In: the text of a program with comments such as
`# launch, alloc?`, and rows (role, line, calls, whether NVIDIA's libraries made the call by themselves). Out: a verdict
for each. Pure.
"""

import re
from dataclasses import dataclass

ROLES = ["launch", "copy", "sync", "alloc"]
# A block of PyTorch's allocator is handed out where memory may be allocated.
BLOCK = "block"
WORDS = [*ROLES, "set", "free", "graph"]
MARK = re.compile(rf"#\s*((?:{'|'.join(WORDS)})\b\??(?:,\s*(?:{'|'.join(WORDS)})\b\??)*)\s*$")
# These allocate, copy and wait when they are set up, wherever they are first used.
SET_UP = ("libcublas", "libcudnn", "libcufft", "libcusparse", "libcusolver", "libcurand", "libnvrtc", "libnvJitLink")


def marks(text):
    """By line number the roles that it must have, and those that it may have: {7: ({"launch"}, {"alloc"})}."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        mark = MARK.search(line)
        if mark:
            words = {word.strip() for word in mark[1].split(",")}
            must = {word for word in words if not word.endswith("?")}
            found[number] = must, {word.rstrip("?") for word in words} - must
    return found


def is_set_up(modules):
    return any(module.startswith(SET_UP) for module in modules)


@dataclass
class Verdict:
    role: str
    line: int
    calls: int
    text: str  # "ok", "set-up of a library", "wrong", "missing"

    @property
    def is_wrong(self):
        return self.text in ("wrong", "missing")


def judged(marked, rows):
    """rows: (role, line, calls, by_library)."""
    verdicts, seen = [], set()
    for role, line, calls, by_library in rows:
        must, may = marked.get(line, (set(), set()))
        word = "alloc" if role == BLOCK else role
        fits = word in must or word in may
        text = "ok" if fits else "set-up of a library" if by_library and role not in ("launch", BLOCK) else "wrong"
        verdicts.append(Verdict(role, line, calls, text))
        seen.add((role, line))
    for line, (must, _) in marked.items():
        verdicts += [Verdict(role, line, 0, "missing") for role in ROLES if role in must and (role, line) not in seen]
    return verdicts
