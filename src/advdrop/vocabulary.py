"""The names of the choices, for the code that makes them and for the configuration that writes them down."""

from __future__ import annotations

from typing import Literal

Order = Literal["largest", "smallest"]
Ties = Literal["exact", "dropped"]
Scale = Literal["inverted", "renormalised", "none"]
Granularity = Literal["unit", "channel", "feature"]
Noise = Literal["independent", "shared"]
BudgetOf = Literal["layer", "shared"]
Ball = Literal["linf", "l2"]
PassName = Literal["labelled", "clean", "second", "adversarial", "search", "input"]
"""The passes of a step: the clean ones of the labelled and of the other rows, a second one with other noise (Π), the
one with the adversarial mask, the mask search, and those on perturbed inputs (AT, VAT)."""

Precision = Literal["auto", "32", "bf16", "fp16"]
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
Labels = int | Literal["all"]
Scaling = Literal["unit", "centred", "none"]
Padding = Literal["reflect", "zeros"]
Norm = Literal["batch", "mean-only", "weight+mean-only", "none"]
