"""The laboratory: data, networks, training runs, records, reports and the command line.

``advdrop.lab.load("runs/first")`` returns the model of a finished run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advdrop.lab.engine.model import Model as Model
    from advdrop.lab.engine.model import load as load

__all__ = ["Model", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'advdrop.lab' has no attribute {name!r}")
    try:
        return getattr(import_module("advdrop.lab.engine.model"), name)
    except ModuleNotFoundError as error:
        if (error.name or "advdrop").startswith("advdrop"):
            raise
        needed = f"advdrop.lab.{name} needs {error.name}, which is not installed; pip install 'advdrop[train]'"
        raise ImportError(needed) from None
