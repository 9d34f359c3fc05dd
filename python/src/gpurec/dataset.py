"""A dataset and the questions to it.

In: the folder that `gpurec export --format parquet` wrote. Out: DataFrames and plots. The questions are the files
in sql/, the views beneath them those in sql/views/; both engines run the same text. Not here: how an engine works
(engines.py), and how an answer is drawn (plots.py).
"""

from __future__ import annotations

import os
from importlib import resources
from typing import Any

from .engines import PREFIX, DuckDB, Engine, Spark, tables

# Views in the order in which they need each other; those that several questions take are kept.
VIEWS = [("collective_gpu", False), ("arrivals", True)]
TIMED = ("ts", "end_ts")


def _text(*parts: str) -> str:
    file = resources.files(__package__).joinpath("sql")
    for part in parts:
        file = file.joinpath(part)
    return file.read_text(encoding="utf-8").strip().rstrip(";")


class Question:
    """A question: call it for a DataFrame, `plot()` it, or read its `sql`."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.sql = _text(f"{name}.sql")
        self.__doc__ = "\n".join(line[3:] for line in self.sql.splitlines() if line.startswith("-- "))
        self._engine = engine

    def __call__(self) -> Any:
        return self._engine.answer(self.sql)

    def plot(self, ax: Any = None, **how: Any) -> Any:
        """Draws the answer with matplotlib. Returns the axes."""
        from . import plots

        return plots.draw(self.name, self(), ax, how)

    def __repr__(self) -> str:
        return f"<question {self.name}: {self.__doc__}>"


class Dataset:
    """The traces of jobs. Each question is an attribute: `job.stragglers()`, `job.stragglers.plot()`."""

    def __init__(self, engine: Engine, clocks: bool = True) -> None:
        self.engine = engine
        #: Whether times are corrected by what `gpurec ranks --write-clocks` found out.
        self.corrected = clocks and engine.has("clocks")
        known = tables()
        for table, columns in known.items():
            engine.base(table, columns)
        for table in known.keys() - {"clocks"}:
            engine.view(f"{PREFIX}{table}", self._timed(table, known[table]))
        for view, kept in VIEWS:
            make = engine.keep if kept else engine.view
            make(f"{PREFIX}{view}", _text("views", f"{view}.sql"))
        self.stragglers = Question("stragglers", engine)
        self.collectives = Question("collectives", engine)
        self.mismatches = Question("mismatches", engine)
        self.hangs = Question("hangs", engine)
        self.kernels = Question("kernels", engine)
        self.gpu_busy = Question("gpu_busy", engine)
        self.memory = Question("memory", engine)
        self.failed_calls = Question("failed_calls", engine)
        self.completeness = Question("completeness", engine)

    def _timed(self, table: str, columns: dict[str, str]) -> str:
        """The table with times on the clock of the job's reference host."""
        if not self.corrected:
            return f"select * from {PREFIX}raw_{table}"
        names = [f"t.{name}" for name in [*columns, "job", "host", "rank"] if name not in TIMED]
        correction = _text("clock.sql")
        timed = [correction.replace(":ts", f"t.{name}") + f" as {name}" for name in TIMED if name in columns]
        source = f"{PREFIX}raw_{table} t left join {PREFIX}raw_clocks k on k.host = t.host"
        return f"select {', '.join(names + timed)} from {source}"

    def sql(self, query: str) -> Any:
        """A query of your own; the views are gpurec_calls, gpurec_gpu and so on."""
        return self.engine.answer(query)


def open(path: str | os.PathLike[str], spark: Any = None, clocks: bool = True) -> Dataset:
    """Opens a dataset, with DuckDB, or with a Spark session. `clocks=False` leaves times as the hosts had them."""
    folder = os.fspath(path)
    engine: Engine = DuckDB(folder) if spark is None else Spark(folder, spark)
    if not engine.has("meta"):
        raise FileNotFoundError(
            f"{folder} is no dataset: it has no table meta; make one with gpurec export --format parquet -o DIR FILE…"
        )
    return Dataset(engine, clocks)
