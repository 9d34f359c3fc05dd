"""DuckDB over a dataset says what `gpurec ranks` says of the traces, and both say what was planted.

Needs DuckDB, and the programs that GPUREC_BINARY and GPUREC_MAKE_JOB name (scripts/test gives both). The same with Spark
is spark_cluster.py.
"""

import os
import sys
import tempfile
import unittest
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpurec  # noqa: E402
import planted  # noqa: E402


class Planted(unittest.TestCase):
    def test_faults_of_32_ranks_on_clocks_that_differ(self):
        program, make_job = os.environ.get("GPUREC_BINARY"), os.environ.get("GPUREC_MAKE_JOB")
        if not program or not make_job:
            self.skipTest("GPUREC_BINARY and GPUREC_MAKE_JOB do not name gpurec and make-job")
        with tempfile.TemporaryDirectory() as folder:
            job = planted.Job(program, make_job, folder)
            job.convert()
            report = job.ranks()
            expected = planted.said_by_ranks(report)
            dataset = gpurec.open(job.dataset)
            self.assertTrue(dataset.corrected)
            found = planted.said_by_dataset(dataset)
            self.assertEqual(list(planted.wrong(expected, report, job.truth)), [])
            self.assertEqual(list(planted.differences(found, expected)), [])
            # Without the clocks, hosts come last whose clocks are ahead.
            raw = planted.said_by_dataset(gpurec.open(job.dataset, clocks=False))
            self.assertNotEqual(raw["stragglers"], expected["stragglers"])

    def test_two_ranks_of_a_real_job(self):
        """Two ranks of PyTorch's DDP on two H100s (traces/README.md)."""
        program = os.environ.get("GPUREC_BINARY")
        if not program:
            self.skipTest("GPUREC_BINARY does not name gpurec")
        traces = sorted((Path(__file__).resolve().parents[2] / "traces").glob("ddp_h100_rank*.jsonl.zst"))
        with tempfile.TemporaryDirectory() as folder:
            job = planted.Traces(program, traces, Path(folder) / "dataset")
            job.convert()
            expected = planted.said_by_ranks(job.ranks())
            found = planted.said_by_dataset(gpurec.open(job.dataset))
            self.assertEqual(len(expected["completeness"]), 2)
            self.assertTrue(expected["stragglers"] and expected["collectives"])
            # A dataset has the times of day of each trace, `ranks` one clock for both: they differ by what reading a clock
            # takes, some nanoseconds for each of the 28 collectives.
            for question, rows in expected.items():
                self.assertEqual(len(found[question]), len(rows), question)
                for cell, said in zip(chain(*found[question]), chain(*rows)):
                    is_sum = isinstance(said, int) and said > 1000
                    if is_sum:
                        self.assertLess(abs(cell - said), 28 * 60, question)
                    else:
                        self.assertEqual(cell, said, question)


if __name__ == "__main__":
    unittest.main()
