"""Data: from bytes to batches. ``load("mnist5k")``, or anything of your own."""

from advdrop.data.examples import UNLABELLED, DataError, DataSet, Examples
from advdrop.data.readers import from_torch
from advdrop.data.sources import load

__all__ = ["UNLABELLED", "DataError", "DataSet", "Examples", "from_torch", "load"]
