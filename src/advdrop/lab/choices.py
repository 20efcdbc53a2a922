"""The values that options of a run may take. Imports no torch, so that the command line can list them at once."""

from __future__ import annotations

import signal
from typing import Literal

Precision = Literal["auto", "32", "bf16", "fp16"]
Instructions = Literal["auto", "avx2"]
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""The variables that keep torch, oneDNN and MKL from using newer instructions. Longer vectors round differently."""
MemoryFormat = Literal["auto", "contiguous", "channels_last"]
Labels = int | Literal["all"]
Scaling = Literal["unit", "centered", "none"]
PresetName = Literal["paper", "authors", "robust"]
PresetChoice = Literal["auto", "paper", "authors", "robust"]
Padding = Literal["reflect", "zeros"]
Norm = Literal["batch", "mean-only", "weight+mean-only", "none"]
ExportFormat = Literal["onnx", "torch"]
BlockNorm = Literal["batch", "group"]
Color = Literal["rgb", "gray"]
ColorChoice = Literal["auto", "rgb", "gray", "grey"]
DATASETS = ("mnist5k", "digits", "mnist", "fashion-mnist", "svhn", "svhn-subset", "cifar10")
"""The data sets that have a name."""
MOST_SEEDS = 1000
"""No command runs more seeds than this. A larger number is a typing mistake."""
_STOP = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
STOP_SIGNALS: list[signal.Signals] = [getattr(signal, name) for name in _STOP if hasattr(signal, name)]
"""Ctrl-C, kill, a terminal that closes, and what batch systems can send before the end of a job, if the system has
them."""
