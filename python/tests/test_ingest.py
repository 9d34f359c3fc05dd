"""Folders of traces that others may write to. A program that only names its trace stands in for gpurec.

    python3 -m unittest discover python/tests
"""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from gpurec import ingest  # noqa: E402


class Folders(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.root = Path(made.name).resolve()
        self.folder = self.root / "job"
        (self.folder / "node").mkdir(parents=True)

    def ingest(self):
        """Runs the ingestion. Returns its exit status and what it wrote to standard error."""
        program = self.root / "program"
        # The trace is the last word. Reading a FIFO without a writer never ends.
        program.write_text('#!/bin/sh\nshift $(($# - 1))\nhead -c 1 "$1"\n', encoding="utf-8")
        program.chmod(0o755)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            status = ingest.main([str(self.folder), str(self.root / "dataset"), "--gpurec", str(program)])
        return status, said.getvalue()

    def test_only_regular_files_are_read(self):
        outside = self.root / "outside"
        outside.write_text("o", encoding="utf-8")
        (self.folder / "node" / "a.jsonl").write_text("a", encoding="utf-8")
        (self.folder / "link.jsonl.zst").symlink_to(outside)
        os.mkfifo(self.folder / "node" / "fifo.jsonl")
        (self.folder / "device.jsonl").symlink_to("/dev/zero")
        (self.folder / "folder.jsonl").mkdir()
        status, said = self.ingest()
        self.assertEqual(status, 0, said)
        self.assertEqual(
            said.splitlines(),
            [
                f"ingest: {self.folder}: device.jsonl and 2 more left out, since only regular files are read",
                f"ingest: {self.folder}/node/a.jsonl: a",
                f"ingest: {outside}: o",
                f"ingest: 2 of 2 traces are in {self.root}/dataset",
            ],
        )

    def test_a_folder_of_others_alone_has_no_trace(self):
        os.mkfifo(self.folder / "a\nb.jsonl")
        status, said = self.ingest()
        self.assertEqual(status, 1)
        first, second = said.splitlines()
        self.assertEqual(first, f"ingest: {self.folder}: a\\nb.jsonl left out, since only regular files are read")
        self.assertTrue(second.startswith(f"ingest: there is no trace in {self.folder}: "), second)


if __name__ == "__main__":
    unittest.main()
