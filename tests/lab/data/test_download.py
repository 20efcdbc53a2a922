import hashlib
import os
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest

from advdrop.lab.data import download
from advdrop.lab.data.download import RemoteFile, fetch, matches
from advdrop.lab.data.examples import DataError

CONTENT = bytes(range(256)) * 1024
CHUNK = download._CHUNK  # what is received of an unfinished chunk is lost
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture(autouse=True)
def _quiet():
    # Pooch's handler holds on to the stderr of the test that imported it.
    pooch.get_logger().setLevel("WARNING")


class Server:
    """What a server on loopback does, and what it was asked for."""

    def __init__(self):
        self.content = CONTENT
        self.ranges = True  # whether it honors Range
        self.drops: list[int] = []  # after how many bytes each of the next answers breaks off
        self.status = 200
        self.shift = 0  # how many bytes too early a range begins
        self.asked: list[str | None] = []  # the Range header of each request
        self.paths: list[str] = []


@contextmanager
def serving():
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.headers["Range"])
            server.paths.append(self.path)
            if server.status != 200:
                return self.send_error(server.status)
            start = int(self.headers["Range"][6:-1]) if self.headers["Range"] and server.ranges else 0
            if start >= len(server.content):
                return self.send_error(416)
            body = server.content[max(0, start - server.shift) :]
            self.send_response(206 if start else 200)
            if start:
                end = len(server.content)
                self.send_header("Content-Range", f"bytes {start - server.shift}-{end - 1}/{end}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            drop = server.drops.pop(0) if server.drops else len(body)
            self.wfile.write(body[:drop])
            return None

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture
def server():
    with serving() as one:
        yield one


@pytest.fixture
def other():
    with serving() as one:
        yield one


def remote(*servers, checksum=MD5):
    return RemoteFile("data.bin", checksum, tuple(f"{server.url}/data.bin" for server in servers))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_is_there_is_used_as_it_is(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"own")
    assert fetch(RemoteFile("data.bin", MD5, ("http://127.0.0.1:1/",)), tmp_path).read_bytes() == b"own"


@pytest.mark.parametrize("checksum", [MD5, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"])
def test_a_download_leaves_the_file_and_nothing_else(server, tmp_path, checksum):
    path = fetch(remote(server, checksum=checksum), tmp_path / "made" / "here")
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["data.bin"]
    assert server.asked == [None]
    assert matches(path, checksum)
    assert not matches(path, "md5:" + "0" * 32)


def test_others_may_read_what_was_downloaded(server, tmp_path):
    (tmp_path / "usual").touch()
    path = fetch(remote(server), tmp_path)
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_dropped_connection_is_resumed_at_once(server, tmp_path):
    server.drops = [CHUNK, 2 * CHUNK + 5]
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={CHUNK}-", f"bytes={3 * CHUNK}-"]
    assert names(tmp_path) == ["data.bin"]


def test_a_dropped_connection_is_resumed_by_the_next_mirror(server, other, tmp_path):
    server.drops = [CHUNK, 0]
    assert fetch(remote(server, other), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={CHUNK}-"]
    assert other.asked == [f"bytes={CHUNK}-"]


def test_a_part_survives_and_is_resumed_by_the_next_call(server, tmp_path):
    server.drops = [CHUNK, 0]
    with pytest.raises(DataError, match="the connection dropped"):
        fetch(remote(server), tmp_path)
    assert names(tmp_path) == ["data.bin.part"]
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:CHUNK]
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={CHUNK}-"
    assert names(tmp_path) == ["data.bin"]


def test_a_connection_that_always_drops_is_given_up(server, tmp_path):
    server.drops = [CHUNK] * 100
    with pytest.raises(DataError, match="the connection dropped"):
        fetch(remote(server), tmp_path)
    assert len(server.asked) == download.ATTEMPTS
    assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[: CHUNK * download.ATTEMPTS]


def test_a_server_without_range_starts_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:5000])
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=5000-"]


def test_a_part_that_is_complete_already_is_taken(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize("spoilt", [CONTENT + b"!", b"?" + CONTENT[1:5000]])
def test_a_spoilt_part_is_thrown_away_and_the_file_got_from_nothing(server, tmp_path, spoilt):
    (tmp_path / "data.bin.part").write_bytes(spoilt)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(spoilt)}-", None]
    assert names(tmp_path) == ["data.bin"]


def test_other_bytes_than_asked_for_are_not_appended(server, other, tmp_path):
    server.shift = 10
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:5000])
    assert fetch(remote(server, other), tmp_path).read_bytes() == CONTENT
    assert server.asked == other.asked == ["bytes=5000-"]


def test_a_wrong_checksum_goes_to_the_next_mirror_and_leaves_no_part(server, other, tmp_path):
    server.content = b"x" * 500
    assert fetch(remote(server, other), tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert other.asked == [None]
    with pytest.raises(DataError, match="wrong checksum"):
        fetch(remote(server), tmp_path / "alone")
    assert names(tmp_path / "alone") == []


def test_mirrors_are_asked_first(server, other, tmp_path):
    other.status = 404
    assert fetch(remote(server), tmp_path, mirrors=[f"{other.url}/mnist/"]).read_bytes() == CONTENT
    assert other.paths == ["/mnist/data.bin"]
    assert server.paths == ["/data.bin"]


def test_when_all_fail_the_message_has_every_address_and_reason(server, other, tmp_path):
    server.status, other.content = 503, b"something else"
    urls = (f"{server.url}/a", f"{other.url}/b", "http://127.0.0.1:1/c", "ftp://127.0.0.1/d", "file:///etc/passwd")
    with pytest.raises(DataError) as caught:
        fetch(RemoteFile("data.bin", MD5, urls), tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for url, reason in zip(
        urls,
        ("HTTP 503", "wrong checksum", "Connection refused", "only http and https are used", "only http and https"),
        strict=True,
    ):
        assert re.search(rf"{re.escape(url)} \({reason}", message)
    assert message.endswith(f"get it by hand into {tmp_path}")


def test_a_silent_server_times_out(tmp_path, monkeypatch):
    import socket

    monkeypatch.setattr(download, "TIMEOUT", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/data.bin"
        with pytest.raises(DataError, match="timed out"):
            fetch(RemoteFile("data.bin", MD5, (url,)), tmp_path)


def test_nothing_is_downloaded_without_a_checksum(server, tmp_path):
    with pytest.raises(DataError, match="there is no address for it"):
        fetch(remote(server, checksum=None), tmp_path)
    assert server.asked == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/folder cannot be made \(Not a directory\)"):
        fetch(RemoteFile("data.bin", MD5, ("http://127.0.0.1:1/",)), tmp_path / "file" / "folder")


def test_the_name_appears_only_when_the_content_is_verified(server, tmp_path, monkeypatch):
    seen = []
    verify = pooch.core.hash_matches

    def spy(*args, **kwargs):
        seen.append(names(tmp_path))
        return verify(*args, **kwargs)

    monkeypatch.setattr(pooch.core, "hash_matches", spy)
    fetch(remote(server), tmp_path)
    assert len(seen) == 1
    assert "data.bin" not in seen[0]


def test_ctrl_c_leaves_a_part_to_resume(server, tmp_path, monkeypatch):
    import requests

    chunks = requests.Response.iter_content

    def interrupted(self, size):
        yield next(chunks(self, size))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(requests.Response, "iter_content", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(remote(server), tmp_path)
    assert names(tmp_path) == ["data.bin.part"]
    kept = (tmp_path / "data.bin.part").stat().st_size
    assert 0 < kept < len(CONTENT)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == f"bytes={kept}-"


@pytest.mark.parametrize(("idle", "asked"), [(3600, f"bytes={5 * CHUNK}-"), (0, None)])
def test_a_part_whose_process_was_killed_is_taken_over(server, tmp_path, idle, asked):
    left = tmp_path / "data.bin.part.tmpabc"
    left.write_bytes(CONTENT[: 5 * CHUNK])
    os.utime(left, (left.stat().st_mtime - idle,) * 2)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [asked]
    assert left.exists() == (idle == 0)  # it may belong to a process that is still at work


def test_two_at_once_never_share_a_part(server, tmp_path, monkeypatch):
    # Both begin with the same part on disk, and neither goes on before the other has begun.
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:5000])
    both = threading.Barrier(2, timeout=240)
    receive = download._receive

    def together(*args):
        both.wait()
        receive(*args)

    monkeypatch.setattr(download, "_receive", together)
    threads = [threading.Thread(target=fetch, args=(remote(server), tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(server.asked) == {None, "bytes=5000-"}
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]


def test_progress_is_shown_when_asked_for(server, tmp_path, capsys):
    fetch(remote(server), tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    fetch(remote(server), tmp_path / "loud", progress=True)
    shown = capsys.readouterr()
    assert "data.bin: 100%" in shown.err
    assert shown.out == ""


def test_progress_is_shown_on_a_terminal(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fetch(remote(server), tmp_path)
    assert "data.bin: 100%" in capsys.readouterr().err
