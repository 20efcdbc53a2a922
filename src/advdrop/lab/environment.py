"""The origin of a result: versions, the commit and the machine, without names of persons or hosts."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import advdrop


def versions() -> dict[str, str]:
    """The versions of the packages that a result may depend on."""
    found = {"python": platform.python_version(), "advdrop": advdrop.__version__}
    for package in ("torch", "lightning-fabric", "lightning", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit(package: Path = Path(advdrop.__file__).parent) -> str | None:
    """The commit of the checkout that this package runs from, with ``+changes`` if it was edited; None if installed."""
    root = package.parent.parent
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None  # installed; a repository around it is another project's
    try:
        head, changes = (
            subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True, timeout=10).stdout
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "src"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+changes" if changes else "")


def machine() -> dict[str, Any]:
    """The processor, the instructions that torch uses on it, the number of threads, and the accelerators."""
    found: dict[str, Any] = {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()}
    found |= {"instructions": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        found["accelerators"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def _processor() -> str:
    """The name, with family and model where they are known: in virtual machines, different processors have one name."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        lines = []
    known = {key.strip(): value.strip() for key, _, value in reversed(lines)}  # the first processor
    if "model name" not in known:
        return platform.processor() or platform.machine()
    numbers = [f"{name} {known[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in known]
    return ", ".join([known["model name"], *numbers])
