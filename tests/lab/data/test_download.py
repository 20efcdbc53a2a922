import hashlib
import re
import socket
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest

from advdrop.lab.data import sources
from advdrop.lab.data.examples import DataError
from advdrop.lab.data.sources import fetch

CONTENT = bytes(range(256)) * 1024
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses between two attempts, which no test waits for."""
    made = []
    monkeypatch.setattr(pooch.core.time, "sleep", made.append)
    # Pooch's handler keeps the stderr of the test that imported it.
    pooch.get_logger().setLevel("WARNING")
    return made


class Server:
    """What a server on loopback does, and what it was asked for."""

    def __init__(self):
        self.content = CONTENT
        self.drops: list[int] = []  # after how many bytes each of the next answers breaks off
        self.status = 200
        self.paths: list[str] = []


@contextmanager
def serving():
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.paths.append(self.path)
            assert self.headers["Accept-Encoding"] == "identity"
            if server.status == 302:
                self.send_response(302)
                self.send_header("Location", self.path)
                self.end_headers()
                return None
            if server.status != 200:
                return self.send_error(server.status)
            self.send_response(200)
            self.send_header("Content-Length", str(len(server.content)))
            self.end_headers()
            self.wfile.write(server.content[: server.drops.pop(0) if server.drops else None])
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


def fetched(folder, *urls, **options):
    """The file that was downloaded from one of these addresses."""
    fetch("data.bin", MD5, urls, folder, **options)
    return folder / "data.bin"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_download_leaves_the_file_and_nothing_else(server, tmp_path):
    path = fetched(tmp_path / "made" / "here", server.url)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["data.bin"]
    assert server.paths == ["/data.bin"]


def test_others_may_read_what_was_downloaded(server, tmp_path):
    (tmp_path / "usual").touch()
    path = fetched(tmp_path, server.url)
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_lost_connection_is_tried_again(server, tmp_path, pauses):
    server.drops = [20_000, 0]
    assert fetched(tmp_path, server.url).read_bytes() == CONTENT
    assert (len(server.paths), pauses) == (3, [1, 2])
    assert names(tmp_path) == ["data.bin"]


def test_an_address_that_always_fails_is_given_up_and_leaves_nothing(server, tmp_path):
    server.drops = [20_000] * 100
    with pytest.raises(DataError, match="ChunkedEncodingError"):
        fetched(tmp_path, server.url)
    assert len(server.paths) == 1 + sources.RETRIES
    assert names(tmp_path) == []


def test_a_wrong_checksum_goes_to_the_next_address_and_leaves_nothing(server, other, tmp_path):
    server.content = b"x" * 500
    assert fetched(tmp_path, server.url, other.url).read_bytes() == CONTENT
    assert len(other.paths) == 1
    with pytest.raises(DataError, match="wrong checksum"):
        fetched(tmp_path / "deep" / "alone", server.url)
    assert names(tmp_path) == ["data.bin"]


def test_addresses_are_tried_in_their_order(server, other, tmp_path):
    other.status = 404
    assert fetched(tmp_path, f"{other.url}/mnist", server.url).read_bytes() == CONTENT
    assert set(other.paths) == {"/mnist/data.bin"}
    assert server.paths == ["/data.bin"]


def test_when_all_fail_the_message_has_every_address_and_reason(server, other, tmp_path):
    server.status, other.content = 503, b"something else"
    reasons = {
        f"{server.url}/a": "HTTP 503",
        f"{other.url}/b": "wrong checksum",
        "http://127.0.0.1:1/c": "ConnectionError",
        "ftp://127.0.0.1/d": "InvalidSchema",
        "file:///etc/passwd": "InvalidSchema",
    }
    with pytest.raises(DataError) as caught:
        fetched(tmp_path, *reasons)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("data.bin cannot be downloaded: ")
    for url, reason in reasons.items():
        assert re.search(rf"{re.escape(url)}/data.bin \({reason}\)", message)
    assert message.endswith(f"download it yourself into {tmp_path}")


def test_redirects_in_a_circle_and_a_page_instead_of_the_file_are_refused(server, other, tmp_path):
    server.status, other.content = 302, b"<!DOCTYPE html><title>Log in</title>"
    with pytest.raises(DataError, match=r"\(HTTP 302\); .*\(wrong checksum\)"):
        fetched(tmp_path / "made", server.url, other.url)
    assert names(tmp_path) == []


def test_a_server_that_sends_without_end_is_cut_off(server, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "LARGEST", 1 << 16)
    with pytest.raises(DataError, match=r"\(more than 65,536 bytes\)"):
        fetched(tmp_path / "made", server.url)
    assert len(server.paths) == 1
    assert names(tmp_path) == []


def test_a_silent_server_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DataError, match="ReadTimeout"):
            fetched(tmp_path, url)


def test_without_an_address_nothing_is_downloaded(tmp_path):
    with pytest.raises(DataError, match="there is no address for it"):
        fetched(tmp_path)


def test_a_folder_that_cannot_be_created_is_named(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"\(Not a directory\); download it yourself into .*/file/folder"):
        fetched(tmp_path / "file" / "folder", server.url)


def test_the_name_appears_only_when_the_content_is_verified(server, tmp_path, monkeypatch):
    seen = []
    verify = pooch.core.hash_matches

    def spy(*args, **kwargs):
        seen.append(names(tmp_path))
        return verify(*args, **kwargs)

    monkeypatch.setattr(pooch.core, "hash_matches", spy)
    fetched(tmp_path, server.url)
    assert len(seen) == 1
    assert "data.bin" not in seen[0]


def test_ctrl_c_leaves_nothing(server, tmp_path, monkeypatch):
    import requests

    chunks = requests.Response.iter_content

    def interrupted(self, chunk_size):
        yield next(chunks(self, chunk_size))
        raise KeyboardInterrupt

    monkeypatch.setattr(requests.Response, "iter_content", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetched(tmp_path / "made", server.url)
    assert names(tmp_path) == []


def test_two_at_once_both_succeed(server, tmp_path):
    threads = [threading.Thread(target=fetched, args=(tmp_path, server.url)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_when_asked_for_or_on_a_terminal(server, tmp_path, capsys, monkeypatch, terminal):
    fetched(tmp_path / "quiet", server.url)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    fetched(tmp_path / "loud", server.url, progress=not terminal)
    shown = capsys.readouterr()
    assert "100%" in shown.err
    assert shown.out == ""
