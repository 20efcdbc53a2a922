"""Download files with pooch: retried, verified by checksum, and only then given their name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from advdrop.lab.data.examples import DataError

TIMEOUT = (10.0, 30.0)
"""Seconds to wait for a connection, and for the next bytes."""
RETRIES = 2
"""How often an address is tried again after a failure, with a pause of 1 s, then 2 s."""


def fetch(name: str, checksum: str, urls: Iterable[str], folder: Path, *, progress: bool = False) -> None:
    """Download a file.

    Args:
        name: of the file.
        checksum: ``md5:...`` or ``sha256:...``.
        urls: addresses of folders that have it, in the order in which they are tried.
        folder: where to keep it; created if needed.
        progress: show a progress bar on stderr even if that is not a terminal.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")
    visible = progress or sys.stderr.isatty()
    # A server that compresses the file again would change its checksum.
    get = pooch.HTTPDownloader(progressbar=visible, headers={"Accept-Encoding": "identity"}, timeout=TIMEOUT)

    def download(url: str, output: str, _: object) -> None:
        Path(output).unlink()  # pooch's file is readable by its owner only; a new one has the usual permissions
        get(url, output, None)

    tried = []
    for url in urls:
        source = pooch.create(folder, url.rstrip("/") + "/", registry={name: checksum}, retry_if_failed=RETRIES)
        try:
            source.fetch(name, downloader=download)
            return
        except (OSError, ValueError) as error:
            tried.append(f"{url.rstrip('/')}/{name} ({_reason(error)})")
    reasons = "; ".join(tried) or "there is no address for it"
    raise DataError(f"{name} cannot be downloaded: {reasons}; download it yourself into {folder}")


def _reason(error: OSError | ValueError) -> str:
    """Return why a download failed, in a few words; the messages of requests are very long."""
    if (response := getattr(error, "response", None)) is not None:
        return f"HTTP {response.status_code}"
    if type(error) is ValueError:
        return "wrong checksum"
    return getattr(error, "strerror", None) or type(error).__name__
