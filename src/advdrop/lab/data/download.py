"""Files from the network: asked for, resumed, checked, and only then given their name."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from advdrop.lab.data.examples import DataError

TIMEOUT = (10.0, 30.0)
"""Seconds to wait for a connection, and for the next bytes."""

ATTEMPTS = 5
"""How often one address is asked, each time from where the last connection dropped."""

_CHUNK = 1 << 14


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be had from the network.

    Args:
        name: what it is called, here and there.
        checksum: ``md5:...`` or ``sha256:...`` as its publisher gives it; None if there is none.
        urls: where to ask for it, in this order.
    """

    name: str
    checksum: str | None = None
    urls: tuple[str, ...] = ()


def fetch(file: RemoteFile, folder: Path, *, mirrors: Sequence[str] = (), progress: bool = False) -> Path:
    """The path of ``file`` in ``folder``, downloaded if it is not there.

    A file that is there is used as it is. A download is kept as ``NAME.part`` when the connection drops or Ctrl-C is
    pressed, and resumed from there, at whichever address answers. It gets its name when its checksum is right.

    Args:
        file: what is wanted; it must have a checksum to be downloaded.
        folder: where it is looked for and kept; made if needed.
        mirrors: addresses of folders, asked for ``MIRROR/NAME`` before the file's own addresses.
        progress: show a progress bar on stderr even if that is no terminal.
    """
    target = folder / file.name
    if target.exists():
        return target
    urls = (*(f"{mirror.rstrip('/')}/{file.name}" for mirror in mirrors), *file.urls) if file.checksum else ()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be made ({error.strerror}); choose another folder for the data") from error
    tried = []
    for url in urls:
        reason = _ask(url, file, folder, progress)
        if reason is None:
            return target
        tried.append(f"{url} ({reason})")
    raise DataError(
        f"{file.name} cannot be downloaded: {'; '.join(tried) or 'there is no address for it'}; get it by hand "
        f"into {folder}"
    )


def matches(path: Path, checksum: str) -> bool:
    """Whether the file has the checksum ``md5:...`` or ``sha256:...``."""
    from pooch.hashes import hash_matches

    return bool(hash_matches(str(path), checksum))


def _ask(url: str, file: RemoteFile, folder: Path, progress: bool) -> str | None:
    """Get the file from one address; None, or the reason why it cannot be had there."""
    import pooch

    part = folder / f"{file.name}.part"
    reason = ""
    for _ in range(ATTEMPTS):
        before = _size(part)
        try:
            pooch.get_logger().setLevel("WARNING")  # the bar says enough
            pooch.retrieve(url, file.checksum, file.name, folder, downloader=partial(_download, part, progress))
            return None
        except (OSError, ValueError) as error:
            reason = _short(error)
        after = _size(part)
        # Again if the connection dropped but got further, or from nothing if what was resumed turned out spoilt.
        if not (after > before or before > after == 0):
            break
    return reason


def _download(part: Path, progress: bool, url: str, output: str, _: object) -> None:
    """What pooch calls to have ``url`` in the file ``output``; it then checks and renames that."""
    # The part is claimed by renaming it. Of two processes only one can have it and the other begins its own, so that
    # neither writes into the other's file, and no lock is left behind by one that was killed.
    mine = part.with_name(f"{part.name}.{Path(output).name}")
    for left in (part, *_orphans(part)):
        with suppress(FileNotFoundError):
            left.replace(mine)
            break
    try:
        with mine.open("ab") as out:
            _receive(url, out, part.stem, progress)
            out.flush()
            os.fsync(out.fileno())
        mine.replace(output)
    finally:
        if _size(mine):
            mine.replace(part)
        mine.unlink(missing_ok=True)


def _orphans(part: Path) -> list[Path]:
    """Parts whose process was killed: one that lives would have had bytes by now, or given up waiting for them."""
    idle = time.time() - 2 * TIMEOUT[1]
    with suppress(FileNotFoundError):
        return [path for path in sorted(part.parent.glob(f"{part.name}.*")) if path.stat().st_mtime < idle]
    return []


def _receive(url: str, out: BinaryIO, name: str, progress: bool) -> None:
    """Append what the file lacks."""
    import requests
    from tqdm import tqdm

    if not url.startswith(("http://", "https://")):
        raise requests.exceptions.InvalidSchema("only http and https are used")
    start = out.tell()
    # A server that packs what is packed already would spoil both the checksum and the resuming.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        # Nothing lies beyond what is here: the checksum tells whether that is all, or too much.
        if start and response.status_code == requests.codes.requested_range_not_satisfiable:
            return
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            start = out.truncate(0)
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise requests.exceptions.InvalidHeader("it sent other bytes than asked for")
        length = response.headers.get("Content-Length", "")
        with tqdm(
            desc=name,
            total=start + int(length) if length.isdecimal() else None,
            initial=start,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            disable=not (progress or sys.stderr.isatty()),
        ) as bar:
            for chunk in response.iter_content(_CHUNK):
                out.write(chunk)
                bar.update(len(chunk))


def _size(path: Path) -> int:
    # Not asked first whether it exists: another process may claim it in between.
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _short(error: Exception) -> str:
    """Why a download failed, in a few words; the messages of requests fill a screen."""
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if isinstance(error, exceptions.Timeout):
        return "timed out"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection dropped"
    if cause := re.search(r"\[Errno -?\d+\] ([^:'\")]+)", str(error)):
        return cause[1]
    if isinstance(error, exceptions.RequestException):
        return "no connection" if isinstance(error, exceptions.ConnectionError) else str(error)
    return "wrong checksum" if isinstance(error, ValueError) else str(error)
