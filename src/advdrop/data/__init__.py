"""Data: from bytes to batches."""

from advdrop.data.examples import UNLABELLED, DataError, DataSet, Examples

__all__ = ["UNLABELLED", "DataError", "DataSet", "Examples"]
