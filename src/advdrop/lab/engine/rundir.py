"""The directory of a run: complete or not there, and never mixed with another run.

The first line of ``config.yaml`` marks the directory as one that this program wrote. It holds the seal of the run: a
digest of the configuration and the split. The digests of the checkpoint and of the result depend on the seal. So a file
that was edited, or that belongs to another run, is refused. Directories without the mark are read, never replaced.
"""

from __future__ import annotations

import csv
import io
import json
import reprlib
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors.torch import load
from torch import Tensor

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.values import parse_yaml, read_yaml
from advdrop.lab.data.batches import LabelSplit
from advdrop.lab.data.examples import reading
from advdrop.lab.engine.replacing import MARK, exchange, is_part, remove, seal_in, sweep
from advdrop.lab.engine.seal import digest_of, seal_of
from advdrop.lab.files import read_json, write_text, written

Row = dict[str, float]
DAMAGED = "train the run again with --force"
RESTART = "delete it to start the run again"
RESULTS = ("metrics.csv", "model.safetensors", "preprocess.safetensors", "model.json", "samples.png")
"""The files whose digests are in ``result.json``."""
BEFORE = "before"
"""The folder of the result that an extended run had."""
FILES = {"config.yaml", "split.npz", "last.ckpt", *RESULTS, "result.json", "answer.json", "tensorboard", BEFORE}
"""What a run directory holds, besides hidden files of this program. One that holds anything else is never replaced."""
LARGEST = 1e12
"""No time, number of updates or percentage in a result is larger. A larger one breaks what is computed from it."""


class RunError(ValueError):
    """A run directory cannot be used as requested. The message names it and the way out."""


class BusyError(RunError):
    """Another process trains the run."""


class _Result(dict[str, Any]):
    """The content of ``result.json``. A field that is missing is an error that names the file."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise RunError(f"{self.path} has no {name}; {DAMAGED}")


@dataclass(frozen=True)
class RunDirectory:
    """``config.yaml``, ``split.npz``, ``metrics.csv``, ``last.ckpt``, the files of the model and ``result.json``.

    The first two are written at the start and ``result.json`` at the end: a run that has it is finished. The model is
    in ``model.safetensors``, ``preprocess.safetensors`` and ``model.json``.
    """

    path: Path

    @classmethod
    def at(cls, path: Path | str) -> RunDirectory:
        """Return the run of a path. A path with a link or ``..`` is resolved before any folder is made."""
        path = Path(path)
        try:
            plain = path.name and ".." not in path.parts and not path.is_symlink()
            return cls(path if plain else path.resolve())
        except (OSError, RuntimeError) as error:  # a loop of links, or a name that is too long
            raise RunError(f"{path} cannot be a run directory: {error}") from None

    @classmethod
    def create(cls, path: Path, config: RunConfig, split: LabelSplit, force: bool = False) -> RunDirectory:
        """Create a run. An existing directory is left alone, unless it is a run and ``force`` is set.

        A process that is killed in here leaves the old run or the new one under the name of the run.
        """
        run = cls.at(path)
        run.refuse_to_replace(force)
        run._replace(config, split)
        return run

    def extend(self, config: RunConfig, state: dict[str, Any] | None) -> None:
        """Give the run a longer configuration, and its checkpoint the seal of that.

        The run is not finished then. The result that it had, with all that belongs to it, is in ``before`` until there
        is a new one. A process that is killed in here leaves the run as it was or extended.
        """

        def copy(new: RunDirectory) -> None:
            for file in self._others():
                if file.is_dir() and not file.is_symlink():
                    shutil.copytree(file, new.path / file.name, symlinks=True)
                else:
                    shutil.copy2(file, new.path / file.name, follow_symlinks=False)
            for name in ("tensorboard", BEFORE):
                if (self.path / name).is_dir() and not (name == BEFORE and self.finished):
                    shutil.copytree(self.path / name, new.path / name)
            if self.finished:
                (new.path / BEFORE).mkdir()
                for name in FILES - {self.checkpoint.name}:
                    if (self.path / name).is_file():
                        shutil.copy2(self.path / name, new.path / BEFORE / name)
            if (self.path / "metrics.csv").is_file():
                shutil.copy2(self.path / "metrics.csv", new.path / "metrics.csv")
            if state is not None:
                new.save_checkpoint(state)

        self._replace(config, self.split, copy)

    def _replace(
        self, config: RunConfig, split: LabelSplit, fill: Callable[[RunDirectory], None] | None = None
    ) -> None:
        """Write a run next to this one, with what ``fill`` adds, and let it take the place of this one."""
        new = RunDirectory(self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:12]}.part"))
        made = [folder for folder in self.path.parents if not folder.exists()]
        try:
            new.path.mkdir(parents=True)
            with new.locked():
                text = config.dump()
                write_text(new.path / "config.yaml", f"{MARK}{seal_of(parse_yaml(text, ''), split)}\n{text}")
                split.save(new.path / "split.npz")
                if self.path.exists():
                    with self.locked():  # a run that another process trains is not replaced
                        if fill is not None:
                            fill(new)
                        exchange(new.path, self.path)
                        remove(new.path)
                else:
                    new.path.rename(self.path)
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"{self.path} cannot be written: {reason}; solve this or choose another --out") from error
        finally:
            with suppress(OSError):
                remove(new.path)
            with suppress(OSError):
                for folder in made:  # they are empty if there is no run
                    folder.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Return an existing run. Its path has a name, also for ``.``, see ``at``."""
        run = cls.at(path)
        if not run.path.exists():
            sweep(run.path.parent)  # it may be back then
        if not (run.path / "config.yaml").is_file():
            raise RunError(f"{path} is not a run: it has no config.yaml")
        return run

    def refuse_to_replace(self, force: bool) -> None:
        """Raise an error if the directory exists, unless it is a run and ``force`` is set."""
        for folder in self.path.absolute().parents:
            if seal_in(folder):
                raise RunError(f"{self.path} is inside the run {folder}; choose another --out")
        if not self.path.exists():
            return
        if not self.seal:
            raise RunError(f"{self.path} exists and is not a run that this program wrote; choose another --out")
        if not force:
            raise RunError(
                f"{self.path} exists; resume it ({self.how_to_resume}), replace it (--force) or give another name"
            )
        if others := self._others():
            name = others[0].name
            raise RunError(f"{self.path} also holds {name}, so --force will not replace it; move that away first")

    def _others(self) -> list[Path]:
        """Return what is in the directory and not of this program."""
        known = {*FILES, ".lock", ".DS_Store"}
        return sorted(file for file in self.path.iterdir() if file.name not in known and not is_part(file))

    @property
    def seal(self) -> str:
        """The digest in the first line of ``config.yaml``; empty if there is none."""
        return seal_in(self.path)

    def refuse_edited(self) -> None:
        """Raise an error if the configuration or the split is not that of the start of the run."""
        file = self.path / "config.yaml"
        if not self.seal:
            raise RunError(f"{file} has lost its first line ({MARK}...), or is of an older version; {DAMAGED}")
        if seal_of(read_yaml(file, "configuration"), self.split) != self.seal:
            raise RunError(
                f"{file} or split.npz was changed after the start of the run; put it back as it was, or use it as the "
                "--config of another run"
            )

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
    def preprocess(self) -> Path:
        """The path of ``preprocess.safetensors``: means, deviations and whitening."""
        return self.path / "preprocess.safetensors"

    @property
    def card(self) -> Path:
        """The path of ``model.json``: classes, shape, scaling and versions."""
        return self.path / "model.json"

    @property
    def samples(self) -> Path:
        """The path of ``samples.png``, a sheet of generated pictures. Only methods with a generator have one."""
        return self.path / "samples.png"

    @property
    def how_to_resume(self) -> str:
        """The command that resumes the run."""
        return f"advdrop train --resume {shlex.quote(str(self.path))}"

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "result.json").is_file()

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; resume it with: {self.how_to_resume}")
        path = self.path / "result.json"
        result: Any = read_json(path)
        if not isinstance(result, dict) or "test_error_percent" not in result:
            raise RunError(f"{path} is not the result of a run; {DAMAGED}")
        for name in ("test_error_percent", "seconds", "milliseconds_per_update", "updates"):
            value = result.get(name, 0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
                raise RunError(f"{path} has {name}={reprlib.repr(value)}, which cannot be right; {DAMAGED}")
        if self.seal or "sha256" in result:  # else it is of an older version
            self.refuse_edited()
            digests = result.get("sha256")
            rest = {key: value for key, value in result.items() if key != "sha256"}
            if not isinstance(digests, dict) or digests.get("result.json") != digest_of([self.seal, rest]):
                raise RunError(f"{path} is damaged or belongs to another run; {DAMAGED}")
        return _Result(path, result)

    def write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write ``result.json``, the last file of a run, with the digests of the results, and return its content."""
        files = [file for name in RESULTS if (file := self.path / name).is_file()]
        digests = {file.name: digest_of(file.read_bytes()) for file in files}
        result = {**result, "sha256": {**digests, "result.json": digest_of([self.seal, result])}}
        write_text(self.path / "result.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        with suppress(OSError):
            shutil.rmtree(self.path / BEFORE)
        return result

    def read(self, path: Path) -> bytes:
        """Read a file that, in a finished run, must be as it was when the result was written."""
        content = path.read_bytes()
        if self.finished and self.result.get("sha256", {}).get(path.name) not in (None, digest_of(content)):
            raise RunError(f"{path} is damaged or belongs to another run; {DAMAGED}")
        return content

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
        if not path.is_file() and not self.finished:
            return []
        with reading(path, RunError, DAMAGED):
            lines = csv.DictReader(io.StringIO(self.read(path).decode()))
            rows = [{name: float(text) for name, text in line.items() if text} for line in lines]
            if any(row["update"] % 1 for row in rows) or (self.finished and not rows):
                raise RunError(f"{path} has no whole number of updates in each row; {DAMAGED}")
            return rows

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write ``last.ckpt``: plain numbers and tensors, so that loading it runs no code."""
        content = io.BytesIO()  # torch does not say that a disk is full
        torch.save({**state, "sha256": digest_of([self.seal, state])}, content)
        with written(self.checkpoint) as file:
            file.write(content.getbuffer())

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Read ``last.ckpt``; return None if the run was stopped before its first checkpoint."""
        if not self.checkpoint.is_file():
            return None
        with reading(self.checkpoint, RunError, RESTART):
            state: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            if state.pop("sha256") != digest_of([self.seal, state]):
                raise RunError(f"{self.checkpoint} is damaged or belongs to another run; {RESTART}")
            return state

    def weights(self) -> dict[str, Tensor]:
        """Read ``model.safetensors``."""
        with reading(self.model, RunError, DAMAGED):
            return load(self.read(self.model))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raise a BusyError if another process trains the run. The lock ends with its process."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise BusyError(f"{self.path} is being trained by another process") from None
        try:
            for leftover in filter(is_part, self.path.iterdir()):  # a killed process was writing it
                leftover.unlink(missing_ok=True)
            sweep(self.path.parent)
            yield
        finally:
            lock.release()
