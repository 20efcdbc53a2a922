"""Files that are written whole or not at all."""

from __future__ import annotations

import glob
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

OLD = 60.0
"""Seconds after which an unfinished file that no process has locked is removed."""


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file to write to; it gets its name when the block succeeds, and is removed otherwise.

    The bytes are on the disk before the name is, so after a power failure either the old file or the new one is there.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> [path.name for path in folder.iterdir()]
    ['a.txt']
    """
    # Not a process id: threads share it, and two machines may use the same id in a shared folder.
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 12}.part"):
            with suppress(OSError), leftover.open("rb") as file:
                if time.time() - leftover.stat().st_mtime > OLD:  # a younger one may be about to be locked
                    _claim(file)
                    leftover.unlink()  # a killed process left it
        with part.open("xb") as file:
            _claim(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:  # the user knows the file, not its part
        if error.errno is None or error.filename not in (None, str(part)):
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _claim(file: IO[bytes]) -> None:
    """Lock an open file for this process, or raise an OSError if a living one has it."""
    if sys.platform != "win32":  # where an open file cannot be removed
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_text(path: Path, text: str, parents: bool = False) -> None:
    """Write a text file in UTF-8, whole or not at all; ``parents`` makes its folders if they do not exist."""
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    with written(path) as file:
        file.write(text.encode())


def cache_folder() -> Path:
    """The folder of the operating system for cached files of this package; it may not exist yet."""
    import pooch

    return Path(pooch.os_cache("advdrop"))


def read_small(path: Path, most: int) -> bytes:
    """Read a file of at most ``most`` bytes. A ValueError names one that is larger, or that is not a file."""
    if path.exists() and not path.is_file():  # to open a pipe would wait forever
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most:,} bytes, which no file of this kind has")
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file; a ValueError names the file."""
    content = read_small(path, 1 << 24)
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from None
