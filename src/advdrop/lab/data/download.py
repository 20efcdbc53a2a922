"""Download files with pooch: retried, verified by checksum, and only then given their name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from advdrop.lab.data.examples import DataError

TIMEOUT = (10.0, 30.0)
"""Seconds to wait for a connection, and for the next bytes."""
RETRIES = 2
"""How often an address is tried again after a failure, with a pause of 1 s, then 2 s."""
DELAY = 2.0
"""Seconds before a progress bar appears."""


@dataclass(frozen=True)
class RemoteFile:
    """A file and the addresses to try; it is only downloaded if it has a checksum ``md5:...`` or ``sha256:...``."""

    name: str
    checksum: str | None = None
    urls: tuple[str, ...] = ()


def fetch(file: RemoteFile, folder: Path, *, mirrors: Sequence[str] = (), progress: bool = False) -> Path:
    """The path of ``file`` in ``folder``, downloaded if it is not there.

    Args:
        file: the file.
        folder: where to look for it and keep it; created if needed.
        mirrors: addresses of folders; ``MIRROR/NAME`` is tried before the file's own addresses.
        progress: show a progress bar on stderr even if that is not a terminal.
    """
    target = folder / file.name
    if target.exists():
        return target
    import pooch

    pooch.get_logger().setLevel("WARNING")
    download = partial(_download, file.name, progress or sys.stderr.isatty())
    tried = []
    for url in (*(f"{mirror.rstrip('/')}/{file.name}" for mirror in mirrors), *file.urls) if file.checksum else ():
        known: dict[str, Any] = {"registry": {file.name: file.checksum}, "urls": {file.name: url}}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pooch.create(folder, "", retry_if_failed=RETRIES, **known).fetch(file.name, downloader=download)
            return target
        except (OSError, ValueError) as error:
            tried.append(f"{url} ({_reason(error)})")
    reasons = "; ".join(tried) or "there is no address for it"
    raise DataError(f"{file.name} cannot be downloaded: {reasons}; download it yourself into {folder}")


def _download(name: str, visible: bool, url: str, output: str, _: object) -> None:
    """Write ``url`` to ``output`` with a progress bar; pooch calls this once for each attempt."""
    from pooch import HTTPDownloader
    from tqdm import tqdm
    from tqdm.utils import CallbackIOWrapper

    def total(response: Any, **_: object) -> None:
        bar.total = int(response.headers.get("Content-Length", 0)) or None

    # A server that compresses the file again would change its checksum.
    options = {"headers": {"Accept-Encoding": "identity"}, "timeout": TIMEOUT, "hooks": {"response": total}}
    Path(output).unlink()  # pooch's temporary file is readable by its owner only; a new one has the usual permissions
    with (
        Path(output).open("wb") as file,
        tqdm(desc=name, unit="B", unit_scale=True, delay=DELAY, disable=not visible, file=sys.stderr) as bar,
    ):
        HTTPDownloader(chunk_size=1 << 14, **options)(url, CallbackIOWrapper(bar.update, file, "write"), None)


def _reason(error: OSError | ValueError) -> str:
    """Why a download failed, in a few words; the messages of requests are very long."""
    if (response := getattr(error, "response", None)) is not None:
        return f"HTTP {response.status_code}"
    if type(error) is ValueError:
        return "wrong checksum"
    return getattr(error, "strerror", None) or type(error).__name__
