"""The engines that answer: DuckDB and Spark.

In: a dataset's folder, the columns of its tables, SQL. Out: views named gpurec_TABLE, and Arrow tables or DataFrames.
Not here: what is asked (sql/), and what an answer means (dataset.py).
"""

from __future__ import annotations

import glob
import json
import sys
from importlib import resources
from typing import Any, Protocol

PREFIX = "gpurec_"
KEYS = {"job": "VARCHAR", "host": "VARCHAR", "rank": "BIGINT"}
SPARK_TYPES = {"VARCHAR": "STRING", "BIGINT": "BIGINT", "BOOLEAN": "BOOLEAN", "DOUBLE": "DOUBLE"}


def tables() -> dict[str, dict[str, str]]:
    """The columns of each table with their types, as the exporter writes them."""
    text = resources.files(__package__).joinpath("columns.json").read_text(encoding="utf-8")
    known: dict[str, dict[str, str]] = json.loads(text)
    return known


class Engine(Protocol):
    def has(self, table: str) -> bool:
        """Whether the dataset has files of this table."""
        ...

    def base(self, table: str, columns: dict[str, str]) -> None:
        """Makes the view `gpurec_raw_TABLE` with these columns and the partition keys. What files lack is null."""
        ...

    def view(self, name: str, query: str) -> None: ...

    def keep(self, name: str, query: str) -> None:
        """Makes a view whose rows are computed once, where the engine can keep them."""
        ...

    def answer(self, query: str) -> Any:
        """A DataFrame: pandas if it is installed, else an Arrow table."""
        ...


class DuckDB:
    def __init__(self, path: str) -> None:
        import duckdb

        self.path = path.rstrip("/")
        self.connection = duckdb.connect()
        # DuckDB draws it into pipes and files too.
        if not sys.stdout.isatty():
            self.connection.execute("set enable_progress_bar = false")

    def _files(self, table: str) -> str:
        """A pattern for the files of a table. A folder's own name may have characters of patterns."""
        folder = self.path if self._is_remote() else glob.escape(self.path)
        return f"{folder}/{table}/**/*.parquet"

    def _is_remote(self) -> bool:
        return "://" in self.path

    def has(self, table: str) -> bool:
        if not self._is_remote():
            return bool(glob.glob(self._files(table), recursive=True))
        found = self.connection.execute("select count(*) from glob(?)", [self._files(table)]).fetchone()
        return bool(found and found[0])

    def base(self, table: str, columns: dict[str, str]) -> None:
        # The clocks have no partitions.
        keys = {} if table == "clocks" else KEYS
        if not self.has(table):
            nulls = ", ".join(f"null::{kind} as {quoted(name)}" for name, kind in {**columns, **keys}.items())
            self.view(f"{PREFIX}raw_{table}", f"select {nulls} where false")
            return
        kinds = ", ".join(f"'{name}': '{kind}'" for name, kind in keys.items())
        hive = f", hive_partitioning = true, hive_types = {{{kinds}}}" if keys else ""
        files = self._files(table).replace("'", "''")
        source = f"read_parquet('{files}', union_by_name = true{hive})"
        there = {row[0] for row in self.connection.execute(f"describe select * from {source}").fetchall()}
        chosen = [
            f"{quoted(name)}::{kind} as {quoted(name)}" if name in there else f"null::{kind} as {quoted(name)}"
            for name, kind in {**columns, **keys}.items()
        ]
        self.view(f"{PREFIX}raw_{table}", f"select {', '.join(chosen)} from {source}")

    def view(self, name: str, query: str) -> None:
        self.connection.execute(f"create or replace temp view {name} as {query}")

    def keep(self, name: str, query: str) -> None:
        self.connection.execute(f"create or replace temp table {name} as {query}")

    def answer(self, query: str) -> Any:
        relation = self.connection.sql(query)
        try:
            import pandas  # noqa: F401
        except ImportError:
            return relation.to_arrow_table()
        return relation.df()


class Spark:
    def __init__(self, path: str, session: Any) -> None:
        self.path = path.rstrip("/")
        self.session = session

    def has(self, table: str) -> bool:
        hadoop = self.session._jvm.org.apache.hadoop.fs
        path = hadoop.Path(f"{self.path}/{table}")
        return bool(path.getFileSystem(self.session._jsc.hadoopConfiguration()).exists(path))

    def base(self, table: str, columns: dict[str, str]) -> None:
        keys = {} if table == "clocks" else KEYS
        kinds = ", ".join(f"`{name}` {SPARK_TYPES[kind]}" for name, kind in {**columns, **keys}.items())
        name = f"{PREFIX}raw_{table}"
        if not self.has(table):
            self.session.createDataFrame([], kinds).createOrReplaceTempView(name)
            return
        # With a schema given, Spark reads no footers to find one, and columns that a file lacks are null.
        self.session.read.schema(kinds).parquet(f"{self.path}/{table}").createOrReplaceTempView(name)

    def view(self, name: str, query: str) -> None:
        self.session.sql(query).createOrReplaceTempView(name)

    def keep(self, name: str, query: str) -> None:
        # Spark keeps what fits, and computes the rest again.
        self.session.sql(query).cache().createOrReplaceTempView(name)

    def answer(self, query: str) -> Any:
        frame = self.session.sql(query)
        try:
            import pandas  # noqa: F401
        except ImportError:
            import pyarrow

            rows = [row.asDict() for row in frame.collect()]
            return pyarrow.Table.from_pylist(rows)
        return frame.toPandas()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
