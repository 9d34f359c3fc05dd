"""The questions, asked of a small dataset whose answers are known. Needs DuckDB and pyarrow, no gpurec.

    python3 -m unittest discover python/tests
"""

import shutil
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import duckdb
import pyarrow
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import gpurec  # noqa: E402
from gpurec.engines import tables  # noqa: E402
from gpurec.plots import draw, rows_of  # noqa: E402

TYPES = {"BIGINT": pyarrow.int64(), "VARCHAR": pyarrow.string(), "BOOLEAN": pyarrow.bool_(), "DOUBLE": pyarrow.float64()}
SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


class Made:
    """Tables of a dataset, row by row."""

    def __init__(self):
        self.rows = {}

    def add(self, table, rank, **row):
        self.rows.setdefault((table, rank), []).append({"trace": rank, "event_id": 0, "ts": START, "pid": 100 + rank, **row})

    def write(self, folder):
        for (table, rank), rows in self.rows.items():
            columns = tables()[table]
            schema = pyarrow.schema([(name, TYPES[kind]) for name, kind in columns.items()])
            path = Path(folder) / table / "job=7" / f"host=node{rank // 2}" / f"rank={rank}"
            path.mkdir(parents=True)
            rows = [{name: row.get(name) for name in columns} for row in rows]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path / "part-0.parquet", compression="zstd")


def made(is_split=False):
    """Four ranks, and collectives 0 to 2: rank 2 is late at two, rank 1 has another count at 1, rank 3 misses 2.
    `is_split`: their communicator was split from another, and no rank knows its number in it."""
    it = Made()
    for rank in range(4):
        it.add("meta", rank, file=f"{rank}.jsonl", complete=rank != 3, ended=True, end_ts=START + 2 * SECOND)
        for seq in range(3 - (rank == 3)):
            late = 5_000 if rank == 2 and seq < 2 else 100 * rank
            ts = START + seq * 1_000_000 + late
            call = 10 * seq + 1
            it.add("calls", rank, event_id=call, ts=ts, name="ncclAllReduce", depth=0, duration_ns=500)
            it.add("calls", rank, event_id=call + 1, ts=ts + 10, name="cudaLaunchKernel", depth=1, parent=call, duration_ns=100)
            count = 8 if rank == 1 and seq == 1 else 4
            it.add(
                "collectives", rank, event_id=call + 2, ts=ts, begin=call, comm="c", seq=seq,
                comm_rank=None if is_split else rank, nranks=None if is_split else 4,
                op="AllReduce", count=count, dtype="bfloat16", redop="sum",
            )
            # At seq 0 the kernels are known; they start 1 µs after the call.
            if seq == 0:
                it.add(
                    "gpu", rank, event_id=call + 3, ts=ts + 1_000, begin=call + 1, kind="kernel", device=0,
                    name="ncclDevKernel_AllReduce", duration_ns=7_000 - late,
                )
    it.add("gpu", 0, event_id=90, ts=START, kind="kernel", device=0, name="gemm", duration_ns=600)
    it.add("gpu", 0, event_id=91, ts=START + 400, kind="copy", device=0, name="memcpy", duration_ns=400)
    it.add("gpu", 1, event_id=92, ts=START, kind="kernel", device=0, name="gemm", duration_ns=900)
    it.add("calls", 3, event_id=80, ts=START, name="cudaMemcpy", depth=0, ended="in_flight", site="train.py:9 step")
    it.add("driver", 3, event_id=81, ts=START, name="nvidia_ioctl", request="NV_ESC_RM_ALLOC", ended="in_flight")
    it.add("calls", 0, event_id=82, ts=START, name="cuInit", depth=0, error="CUDA_ERROR_NO_DEVICE", duration_ns=5)
    for number, (op, size) in enumerate([("alloc", 10), ("free", 10), ("alloc", 20), ("alloc", 30)]):
        ptr = 1 if number < 3 else 2
        it.add("memory", 0, event_id=70 + number, op=op, size=size, ptr=ptr, space="device", site="train.py:5 grow")
    return it


class Questions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        made().write(cls.folder.name)
        cls.job = gpurec.open(cls.folder.name)

    def rows(self, question, *columns):
        return [tuple(row[column] for column in columns) for row in rows_of(question())]

    def test_stragglers(self):
        # The third collective is not whole.
        self.assertEqual(
            self.rows(self.job.stragglers, "rank", "collectives", "cost_ns", "arrival"),
            [(2, 2, 2 * (5_000 + 4_900 + 4_700), "gpu")],
        )

    def test_a_communicator_that_was_split_has_the_same_answers(self):
        with tempfile.TemporaryDirectory() as folder:
            made(is_split=True).write(folder)
            split = gpurec.open(folder)
            for question in ("stragglers", "collectives", "mismatches", "hangs"):
                self.assertEqual(rows_of(getattr(split, question)()), rows_of(getattr(self.job, question)()), question)

    def test_collectives(self):
        (row,) = self.rows(self.job.collectives, "comm", "op", "nranks", "count", "wait_ns")
        self.assertEqual(row, ("c", "AllReduce", 4, 2, 2 * (5_000 + 4_900 + 4_700)))

    def test_mismatches(self):
        found = self.rows(self.job.mismatches, "comm", "seq", "field", "rank", "value")
        self.assertEqual(found, [("c", 1, "count", rank, "8" if rank == 1 else "4") for rank in range(4)])

    def test_hangs(self):
        found = self.rows(self.job.hangs, "comm", "seq", "rank", "own_seq", "in_call", "site", "in_driver")
        self.assertEqual(found, [("c", 2, 3, 1, "cudaMemcpy", "train.py:9 step", "NV_ESC_RM_ALLOC")])

    def test_kernels(self):
        found = {row[:2]: row[2:] for row in self.rows(self.job.kernels, "name", "rank", "count", "total_ns", "ratio")}
        self.assertEqual(found[("gemm", 0)], (1, 600, 0.8))
        self.assertEqual(found[("gemm", 1)], (1, 900, 1.2))

    def test_gpu_busy(self):
        found = {row[0]: row[1:] for row in self.rows(self.job.gpu_busy, "rank", "busy_ns", "idle_ns", "gaps")}
        # gemm and the copy overlap; the collective follows after a gap of 200 ns.
        self.assertEqual(found[0], (800 + 7_000, 200, 1))

    def test_memory(self):
        self.assertEqual(
            self.rows(self.job.memory, "rank", "site", "allocations", "allocated_bytes", "held", "held_bytes"),
            [(0, "train.py:5 grow", 3, 60, 2, 50)],
        )

    def test_memory_held_is_not_known_where_frees_were_not_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            it = made()
            it.rows["meta", 0][0]["summary"] = '{"unknown":{"memory.held":"frees were not recorded"},"memory":{"held":null}}'
            it.write(folder)
            (row,) = rows_of(gpurec.open(folder).memory())
        self.assertEqual((row["allocations"], row["allocated_bytes"]), (3, 60))
        self.assertTrue(row["held"] is None and row["held_bytes"] is None, row)

    def test_failed_calls(self):
        self.assertEqual(
            self.rows(self.job.failed_calls, "rank", "name", "error", "count"), [(0, "cuInit", "CUDA_ERROR_NO_DEVICE", 1)]
        )

    def test_completeness(self):
        self.assertEqual(
            self.rows(self.job.completeness, "rank", "host", "complete", "copies"),
            [(rank, f"node{rank // 2}", rank != 3, 1) for rank in range(4)],
        )

    def test_a_rank_without_a_trace_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            made().write(folder)
            for path in Path(folder).rglob("rank=1"):
                shutil.rmtree(path)
            rows = rows_of(gpurec.open(folder).completeness())
            self.assertEqual([(row["rank"], row["copies"]) for row in rows], [(0, 1), (1, 0), (2, 1), (3, 1)])

    def test_queries_of_ones_own(self):
        (row,) = rows_of(self.job.sql("select count(*) as n, min(job) as job, max(rank) as rank from gpurec_collectives"))
        self.assertEqual(row, {"n": 11, "job": "7", "rank": 3})

    def test_without_pandas_an_answer_is_an_arrow_table(self):
        with unittest.mock.patch.dict(sys.modules, {"pandas": None}):
            answer = self.job.failed_calls()
        self.assertIsInstance(answer, pyarrow.Table)
        self.assertEqual(answer.num_rows, 1)

    def test_plots(self):
        try:
            import matplotlib
        except ImportError:
            self.skipTest("matplotlib is not installed")
        matplotlib.use("Agg")
        for question in vars(self.job).values():
            if isinstance(question, gpurec.Question):
                axes = question.plot()
                self.assertTrue(axes.get_title(), question.name)
                axes.figure.clear()

    def test_a_name_that_reads_as_a_formula_is_drawn_as_it_is(self):
        try:
            import matplotlib
        except ImportError:
            self.skipTest("matplotlib is not installed")
        matplotlib.use("Agg")
        for name in ["a$\\frac$", "$", "a\\$b$c$"]:
            row = {"name": name, "rank": 0, "total_ns": 1}
            axes = draw("kernels", pyarrow.Table.from_pylist([row]), None, {})
            axes.figure.draw_without_rendering()
            (label,) = axes.get_yticklabels()
            self.assertFalse(matplotlib.cbook.is_math_text(label.get_text()), name)
            self.assertEqual(label.get_text().replace(r"\$", "$"), f"{name} 0")
            axes.figure.clear()


class Datasets(unittest.TestCase):
    def test_a_progress_bar_is_for_terminals_only(self):
        default = duckdb.connect().execute("select current_setting('enable_progress_bar')").fetchone()[0]
        for is_terminal in [False, True]:
            with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("gpurec.engines.sys") as mocked:
                mocked.stdout.isatty.return_value = is_terminal
                made().write(folder)
                job = gpurec.open(folder)
                (row,) = rows_of(job.sql("select current_setting('enable_progress_bar') as shown"))
            self.assertEqual(row["shown"], is_terminal and default)

    def test_clocks_correct_times(self):
        with tempfile.TemporaryDirectory() as folder:
            it = made()
            it.write(folder)
            clocks = Path(folder) / "clocks"
            clocks.mkdir()
            # node1, with rank 2 and 3, is 5 µs ahead at the start and runs 1,000 ppm fast.
            row = {"host": "node1", "offset_ns": 5_000, "drift_ppm": 1_000.0, "error_ns": 9, "at_ns": START}
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), clocks / "part-0.parquet", compression="zstd")
            corrected = rows_of(gpurec.open(folder).sql("select ts from gpurec_collectives where rank = 2 order by seq"))
            times = [row["ts"] - START for row in corrected]
            self.assertEqual(times, [0, 999_001, 1_993_207])
            raw = gpurec.open(folder, clocks=False)
            self.assertEqual([row["ts"] for row in rows_of(raw.sql("select min(ts) as ts from gpurec_collectives where rank = 2"))], [START + 5_000])

    def test_a_dataset_of_an_older_version_lacks_columns(self):
        with tempfile.TemporaryDirectory() as folder:
            made().write(folder)
            for part in Path(folder, "calls").rglob("*.parquet"):
                table = pyarrow.parquet.read_table(part, partitioning=None)
                pyarrow.parquet.write_table(table.drop_columns(["error", "site"]), part)
            self.assertEqual(rows_of(gpurec.open(folder).failed_calls()), [])

    def test_a_folder_may_have_characters_of_patterns_in_its_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, rank in [("run[1]", 1), ("run*", 2), ("run?", 3), ("run1", 4)]:
                it = Made()
                it.add("meta", rank, file=f"{name}.jsonl", complete=True, ended=True)
                it.write(Path(folder) / name)
            for name in ["run[1]", "run*", "run?", "run1"]:
                files = rows_of(gpurec.open(Path(folder) / name).sql("select file from gpurec_meta"))
                self.assertEqual(files, [{"file": f"{name}.jsonl"}])

    def test_a_folder_without_traces_is_no_dataset(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(FileNotFoundError, "is no dataset"):
            gpurec.open(folder)


if __name__ == "__main__":
    unittest.main()
