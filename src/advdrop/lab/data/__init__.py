"""Data, from files to batches: ``load("mnist5k")``, or your own."""

from advdrop.lab.data.examples import UNLABELED, DataError, DataSet, Examples
from advdrop.lab.data.sources import load

__all__ = ["UNLABELED", "DataError", "DataSet", "Examples", "load"]
