"""The directory of a run: whole or not there, and never mixed with another run."""

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
from typing import TYPE_CHECKING, Any

from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.splits import LabelSplit
from advdrop.lab.files import read_json, write_text, written

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, float]


class RunError(ValueError):
    """A run directory that cannot be used as asked: the message names it and the way out."""


class BusyError(RunError):
    """Another process trains the run."""


@dataclass(frozen=True)
class RunDirectory:
    """``config.yaml``, ``split.npz``, ``metrics.csv``, ``last.ckpt``, ``model.safetensors`` and ``result.json``.

    The first two are there from the first moment, ``result.json`` comes last: a run that has it is finished.
    """

    path: Path

    @classmethod
    def create(cls, path: Path, config: RunConfig, split: LabelSplit, force: bool = False) -> RunDirectory:
        """Make a new run; nothing that exists is touched, unless ``force`` says to replace a run."""
        path = Path(path).resolve() if Path(path).is_symlink() else Path(path)
        run = cls(path)
        run.refuse_to_replace(force)
        part, old = (path.with_name(f".{path.name}.{os.getpid()}.{kind}") for kind in ("part", "old"))
        try:
            part.mkdir(parents=True)
            write_text(part / "config.yaml", config.dump())
            split.save(part / "split.npz")
            if path.exists():
                with run.locked():  # a run that is being trained is not taken from under its process
                    path.rename(old)
            part.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run."""
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise RunError(f"{path} is not a run: it has no config.yaml")
        return cls(path)

    def refuse_to_replace(self, force: bool) -> None:
        """An error if there is something in the way, unless it is a run and ``force`` says to replace it."""
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
        """The rows that were labeled."""
        with self._readable("split.npz") as file:
            return LabelSplit.load(file)

    @property
    def checkpoint(self) -> Path:
        """Where ``last.ckpt`` is, or will be."""
        return self.path / "last.ckpt"

    @property
    def model(self) -> Path:
        """Where ``model.safetensors`` is, or will be."""
        return self.path / "model.safetensors"

    @property
    def how_to_resume(self) -> str:
        """The command that goes on with the run."""
        return f"advdrop train --resume {shlex.quote(str(self.path))}"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "result.json").is_file()

    @property
    def result(self) -> dict[str, Any]:
        """What the run came to."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; go on with it: {self.how_to_resume}")
        found: dict[str, Any] = read_json(self.path / "result.json")
        return found

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``, the last file of a run."""
        write_text(self.path / "result.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")

    def write_metrics(self, rows: Sequence[Row]) -> None:
        """Write ``metrics.csv``: one row an epoch; a column that some rows lack is empty there."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / "metrics.csv", text.getvalue())

    def metrics(self) -> list[Row]:
        """Read ``metrics.csv``; no rows before the first epoch is over."""
        if not (self.path / "metrics.csv").is_file():
            return []
        with self._readable("metrics.csv") as path, path.open(newline="") as file:
            return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write ``last.ckpt``: plain numbers and tensors, so that it loads without unpickling code."""
        import torch

        with written(self.checkpoint) as file:
            torch.save(state, file)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Read ``last.ckpt``; none was written if the run was stopped at its very start."""
        import torch

        if not self.checkpoint.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:  # torch has many ways to say that a file is not one of its own
            reason = str(error).split("\n")[0]
            raise RunError(f"{self.checkpoint} cannot be read ({reason}); delete it to start the run again") from None
        return state

    def weights(self) -> dict[str, Tensor]:
        """Read ``model.safetensors``."""
        from safetensors.torch import load_file

        with self._readable("model.safetensors") as file:
            return load_file(file)

    @contextmanager
    def _readable(self, name: str) -> Iterator[Path]:
        """A file of the run; whatever is wrong with it is an error that names it."""
        path = self.path / name
        try:
            yield path
        except Exception as error:  # a damaged file may raise anything in the packages that read it
            reason = str(error).split("\n")[0]
            raise RunError(f"{path} cannot be read ({type(error).__name__}: {reason})") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No two processes train one run: the second one is refused. The lock goes with its process."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(f"{self.path} is being trained by another process") from None
            for litter in self.path.glob(".*.part"):  # what a killed process was writing
                litter.unlink(missing_ok=True)
            yield
