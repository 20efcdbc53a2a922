import errno
import os
import threading
from pathlib import Path

import pytest

from advdrop.lab import files
from advdrop.lab.files import cache_folder, read_json, write_text, written


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_when_the_block_ends(tmp_path):
    path = tmp_path / "a.bin"
    with written(path) as file:
        file.write(b"first ")
        assert not path.exists()
        file.write(b"second")
    assert path.read_bytes() == b"first second"
    assert names(tmp_path) == ["a.bin"]


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"a longer old file")
    with written(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"a longer old file"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [b"old", None])
def test_a_failing_block_leaves_the_old_file_and_no_litter(tmp_path, error, old):
    path = tmp_path / "a.bin"
    if old:
        path.write_bytes(old)

    def write():
        with written(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == (["a.bin"] if old else [])
    assert not old or path.read_bytes() == old


def test_a_failing_rename_leaves_no_litter(tmp_path):
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(OSError, match=r"a\.bin"), written(tmp_path / "a.bin") as file:
        file.write(b"new")
    assert names(tmp_path) == ["a.bin"]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    order, path = [], tmp_path / "a.bin"
    sync, replace = os.fsync, Path.replace

    def seen_sync(number):
        order.append(("sync", os.fstat(number).st_size))
        sync(number)

    def seen_replace(self, target):
        order.append(("name", target))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    with written(path) as file:
        file.write(b"12345")
    assert order == [("sync", 5), ("name", path)]


def test_two_writers_of_one_process_do_not_mix(tmp_path):
    path = tmp_path / "a.bin"
    with written(path) as slow:
        slow.write(b"slow, ")
        with written(path) as fast:
            fast.write(b"fast")
        assert path.read_bytes() == b"fast"
        slow.write(b"and last")
        slow.flush()
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow, and last"
    assert names(tmp_path) == ["a.bin"]


def test_many_writers_at_once_leave_one_whole_file(tmp_path):
    path, contents, errors = tmp_path / "a.bin", [bytes([i]) * (1000 + i) for i in range(8)], []

    def write(content):
        try:
            for _ in range(5):
                with written(path) as file:
                    for start in range(0, len(content), 100):
                        file.write(content[start : start + 100])
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["a.bin"]


def test_text_is_utf_8(tmp_path):
    write_text(tmp_path / "a.json", '{"δ": "ü"}')
    assert (tmp_path / "a.json").read_bytes() == '{"δ": "ü"}'.encode()
    assert read_json(tmp_path / "a.json") == {"δ": "ü"}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000], ids=range(6)
)
def test_what_is_no_json_is_named(tmp_path, content):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"r\.json is not a JSON file: "):
        read_json(tmp_path / "r.json")


def test_a_pipe_and_a_huge_file_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match=r"pipe\.json is not a file"):
        read_json(tmp_path / "pipe.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"huge\.json has more than 16,777,216 bytes"):
        read_json(tmp_path / "huge.json")


def test_the_cache_folder_is_where_the_system_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().name == "advdrop"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    dead, others = tmp_path / ".a.json.0123456789ab.part", tmp_path / ".b.json.0123456789ab.part"
    dead.touch()
    others.touch()
    write_text(path, "{}")
    assert dead.exists()  # too young to be sure
    monkeypatch.setattr(files, "OLD", -1.0)
    with written(path) as living:
        write_text(path, "{}")
        living.write(b"[]")
    assert read_json(path) == []
    assert names(tmp_path) == [others.name, "a.json"]


@pytest.mark.parametrize("failing", ["open", "write"])
def test_an_error_names_the_file_and_not_its_part(failing, tmp_path, monkeypatch):
    path = tmp_path / "missing" / "a.txt" if failing == "open" else tmp_path / "a.txt"

    def fail():
        with written(path):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=rf"{path}'$") as caught:
        fail()
    assert caught.value.errno == (errno.ENOENT if failing == "open" else errno.ENOSPC)
