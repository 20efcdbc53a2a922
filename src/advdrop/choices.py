"""The values that options may take. Imports no torch, so that the command line can list them at once."""

from __future__ import annotations

from typing import Literal

Order = Literal["largest", "smallest"]
Ties = Literal["exact", "dropped"]
Scale = Literal["inverted", "renormalized", "none"]
Granularity = Literal["unit", "channel", "feature"]
Noise = Literal["independent", "shared"]
BudgetOf = Literal["layer", "shared"]
Ball = Literal["linf", "l2"]
Per = Literal["sequence", "token"]
PassName = Literal["labeled", "clean", "second", "adversarial", "search", "input"]
"""The passes of a step: the clean pass of the labeled rows and of the other rows, a second pass with new noise (the Π
model), the pass with the adversarial mask, the mask search, and the passes on perturbed inputs (AT, VAT)."""
