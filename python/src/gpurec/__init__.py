"""Questions to datasets of gpurec, by DuckDB on one machine or by Spark on many."""

from __future__ import annotations

from .dataset import Dataset, Question, open

__all__ = ["Dataset", "Question", "open"]
__version__ = "0.1.0"
