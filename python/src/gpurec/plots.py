"""Draws answers with matplotlib: horizontal bars, the largest first.

In: a DataFrame, or an Arrow table, and the name of its question. Out: axes. Not here: which rows there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Bars beyond these are left out; the title says so.
MOST = 30


class Bars(NamedTuple):
    labels: tuple[str, ...]
    values: tuple[str, ...]
    # What a value is divided by, and its unit then.
    scale: float
    unit: str


MS = (1e6, "ms")
MIB = (float(1 << 20), "MiB")
NUMBER = (1.0, "number")
BARS = {
    "stragglers": Bars(("rank",), ("cost_ns",), *MS),
    "collectives": Bars(("op", "comm"), ("wait_ns", "transfer_ns"), *MS),
    "mismatches": Bars(("field", "value"), ("seq",), *NUMBER),
    "hangs": Bars(("rank", "in_call"), ("own_seq", "seq"), *NUMBER),
    "kernels": Bars(("name", "rank"), ("total_ns",), *MS),
    "gpu_busy": Bars(("rank", "device"), ("busy_ns", "idle_ns"), *MS),
    "memory": Bars(("site", "rank"), ("held_bytes", "allocated_bytes"), *MIB),
    "failed_calls": Bars(("name", "error", "rank"), ("count",), *NUMBER),
    "completeness": Bars(("rank", "file"), ("duration_ns",), *MS),
}


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """The rows of a pandas DataFrame or an Arrow table."""
    if hasattr(frame, "to_pylist"):
        rows: list[dict[str, Any]] = frame.to_pylist()
    else:
        rows = frame.to_dict("records")
    return rows


def draw(name: str, frame: Any, ax: Any, how: dict[str, Any]) -> Any:
    import matplotlib.pyplot as plt

    bars = BARS[name]
    rows = rows_of(frame)
    shown = rows[:MOST]
    if ax is None:
        _, ax = plt.subplots(figsize=(8, 1.5 + 0.25 * len(shown)), layout="constrained")
    # Matplotlib takes what is between two $ for a formula.
    labels = [" ".join(text(row[key]) for key in bars.labels).replace("$", r"\$") for row in shown]
    height = 0.8 / len(bars.values)
    for at, value in enumerate(bars.values):
        places = [place + at * height for place in range(len(shown))]
        widths = [number(row[value]) / bars.scale for row in shown]
        ax.barh(places, widths, height=height, label=value, **how)
    ax.set_yticks([place + 0.4 - height / 2 for place in range(len(shown))], labels)
    ax.invert_yaxis()
    ax.set_xlabel(bars.unit)
    more = f" (the first {MOST} of {len(rows)})" if len(rows) > MOST else ""
    ax.set_title(name.replace("_", " ") + more)
    if len(bars.values) > 1:
        ax.legend()
    return ax


def number(value: Any) -> float:
    # A null is NaN in a DataFrame.
    return 0.0 if value is None or value != value else float(value)


def text(value: Any) -> str:
    if value is None or value != value:
        return "?"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    shown = str(value)
    return shown if len(shown) <= 40 else shown[:39] + "…"
