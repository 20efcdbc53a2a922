"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
    """Read a file of which a person or this program wrote every byte; a ValueError names one that is no such file."""
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
