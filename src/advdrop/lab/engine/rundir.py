"""The directory of a run: complete or not there, and never mixed with another run."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file
from torch import Tensor

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.batches import LabelSplit
from advdrop.lab.data.examples import reading
from advdrop.lab.files import read_json, write_text, written

Row = dict[str, float]
DAMAGED = "train the run again with --force"


class RunError(ValueError):
    """A run directory cannot be used as requested. The message names it and the way out."""


class BusyError(RunError):
    """Another process trains the run."""


@dataclass(frozen=True)
class RunDirectory:
    """``config.yaml``, ``split.npz``, ``metrics.csv``, ``last.ckpt``, ``model.safetensors`` and ``result.json``.

    The first two are written at the start and ``result.json`` at the end: a run that has it is finished.
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: RunConfig, split: LabelSplit, force: bool = False) -> RunDirectory:
        """Create a run. An existing directory is left alone, unless it is a run and ``force`` is set."""
        path = Path(path).resolve() if Path(path).is_symlink() else Path(path)
        run = cls(path)
        run.refuse_to_replace(force)
        part, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("part", "old"))
        try:
            part.mkdir(parents=True)
            write_text(part / "config.yaml", config.dump())
            split.save(part / "split.npz")
            if path.exists():
                with run.locked():  # a run that another process trains is not replaced
                    path.rename(old)
            part.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Return an existing run."""
        if not (Path(path) / "config.yaml").is_file():
            raise RunError(f"{path} is not a run: it has no config.yaml")
        return cls(Path(path))

    def refuse_to_replace(self, force: bool) -> None:
        """Raise an error if the directory exists, unless it is a run and ``force`` is set."""
        if self.path.exists() and not force:
            raise RunError(
                f"{self.path} exists; resume it ({self.how_to_resume}), replace it (--force) or give another name"
            )
        if self.path.exists() and not (self.path / "config.yaml").is_file():
            raise RunError(f"{self.path} is not a run (it has no config.yaml), so --force will not replace it")

    @property
    def config(self) -> RunConfig:
        """The resolved configuration."""
        return RunConfig.read(self.path / "config.yaml")

    @property
    def split(self) -> LabelSplit:
        """The labeled and unlabeled rows."""
        with reading(self.path / "split.npz", RunError, DAMAGED):
            return LabelSplit.load(self.path / "split.npz")

    @property
    def checkpoint(self) -> Path:
        """The path of ``last.ckpt``."""
        return self.path / "last.ckpt"

    @property
    def model(self) -> Path:
        """The path of ``model.safetensors``."""
        return self.path / "model.safetensors"

    @property
    def how_to_resume(self) -> str:
        """The command that resumes the run."""
        return f"advdrop train --resume {shlex.quote(str(self.path))}"

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "result.json").is_file()

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; resume it with: {self.how_to_resume}")
        result: dict[str, Any] = read_json(self.path / "result.json")
        return result

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``, the last file of a run."""
        write_text(self.path / "result.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")

    def write_metrics(self, rows: Sequence[Row]) -> None:
        """Write ``metrics.csv``, a row for each epoch. A value that a row does not have is left empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / "metrics.csv", text.getvalue())

    def metrics(self) -> list[Row]:
        """Read ``metrics.csv``. There are no rows before the end of the first epoch."""
        path = self.path / "metrics.csv"
        if not path.is_file():
            return []
        with reading(path, RunError, DAMAGED), path.open(newline="") as file:
            return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write ``last.ckpt``: plain numbers and tensors, so that loading it runs no code."""
        with written(self.checkpoint) as file:
            torch.save(state, file)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Read ``last.ckpt``; return None if the run was stopped before its first checkpoint."""
        if not self.checkpoint.is_file():
            return None
        with reading(self.checkpoint, RunError, "delete it to start the run again"):
            state: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            return state

    def weights(self) -> dict[str, Tensor]:
        """Read ``model.safetensors``."""
        with reading(self.model, RunError, DAMAGED):
            return load_file(self.model)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raise a BusyError if another process trains the run. The lock ends with its process."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise BusyError(f"{self.path} is being trained by another process") from None
        try:
            for leftover in self.path.glob(".*.part"):  # a killed process was writing it
                leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()
