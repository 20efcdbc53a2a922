"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write to; it gets its name when the block ends well, and leaves nothing behind otherwise.

    The bytes are on the disk before the name is: a machine that loses power has the old file or the new one.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with written(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> [path.name for path in folder.iterdir()]
    ['a.txt']
    """
    # No process id: threads share one, and so may machines that share a folder.
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with written(path) as file:
        file.write(text.encode())


def cache_folder() -> Path:
    """The folder for what can be made again, where this system keeps such things; not made yet."""
    import pooch

    return Path(pooch.os_cache("advdrop"))


def read_json(path: Path) -> Any:
    """A JSON file, or a ValueError that names it."""
    import json

    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from None
