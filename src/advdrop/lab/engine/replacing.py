"""Replace one run directory by another, so that a killed process leaves one of the two whole.

A new directory has a hidden name until it is complete. Then both are exchanged, and the old one is removed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

MARK = "# advdrop run 1, seal "
"""How the first line of ``config.yaml`` begins in a directory that this program wrote."""


def seal_in(folder: Path) -> str:
    """Return the digest in the first line of ``config.yaml``; empty if there is none."""
    file = folder / "config.yaml"
    with suppress(OSError):
        if file.is_file():  # to open a pipe would wait forever
            with file.open("rb") as opened:
                first = opened.readline(200).decode(errors="replace").strip()
            return first.removeprefix(MARK) if first.startswith(MARK) else ""
    return ""


def exchange(new: Path, old: Path) -> None:
    """Exchange two folders at once, if the system can; else there is a moment in which the old one is set aside."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename and rename(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0:
        return
    aside = new.with_suffix(".old")
    old.rename(aside)
    try:
        new.rename(old)
    except BaseException:
        aside.rename(old)
        raise
    aside.rename(new)


def is_part(path: Path) -> bool:
    """Return True if ``written`` has named a file."""
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.part", path.name) is not None


def remove(path: Path) -> None:
    """Remove a run directory. The mark is the last to go, so that a killed process leaves what can be recognized."""
    for file in path.iterdir():
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        elif file.name not in ("config.yaml", ".lock"):
            file.unlink()
    shutil.rmtree(path)


def sweep(folder: Path) -> None:
    """Remove what killed processes left in a folder of runs; a run that one of them had set aside is put back."""
    for path in folder.glob(".*"):
        name = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}\.(part|old)", path.name)
        with suppress(OSError, Timeout):
            if not name or not (seal_in(path) or all(file.name[0] == "." for file in path.iterdir())):
                continue
            with FileLock(path / ".lock", timeout=0):  # a living process would hold it
                if name[2] == "old" and not path.with_name(name[1]).exists():
                    path.rename(path.with_name(name[1]))
                else:
                    remove(path)
