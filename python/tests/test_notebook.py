"""Runs the cells of docs/fleet.ipynb on the small dataset of test_questions.py, without Jupyter."""

import json
import os
import tempfile
import unittest
from pathlib import Path

from test_questions import made

NOTEBOOK = Path(__file__).resolve().parent.parent.parent / "docs" / "fleet.ipynb"


class Notebook(unittest.TestCase):
    def test_every_cell_runs(self):
        try:
            import matplotlib
        except ImportError:
            self.skipTest("matplotlib is not installed")
        matplotlib.use("Agg")
        cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        self.assertGreater(len(code), 8)
        with tempfile.TemporaryDirectory() as folder:
            made().write(folder)
            os.environ["GPUREC_DATASET"] = folder
            self.addCleanup(os.environ.pop, "GPUREC_DATASET")
            names = {}
            for number, text in enumerate(code):
                with self.subTest(cell=number):
                    exec(compile(text, f"cell {number}", "exec"), names)


if __name__ == "__main__":
    unittest.main()
