"""DuckDB over a dataset says what `gpurec ranks` says of the traces, and both say what was planted.

Needs DuckDB, and the programs that GPUREC_BINARY and GPUREC_MAKE_JOB name (scripts/test gives both). The same with Spark
is spark_cluster.py.
"""

import os
import sys
import tempfile
import unittest
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


if __name__ == "__main__":
    unittest.main()
