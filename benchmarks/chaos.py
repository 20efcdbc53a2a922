"""Attack the program: kills, full disks, tampered runs, hostile files, mistyped commands, misuse of the library.

    python benchmarks/chaos.py [--only kills runs] [--count 100] [--seed 0] [--json results/chaos.json]

Everything is drawn from the seed, in folders that are deleted afterward. A command runs in a process of its own, which
is forked so that hundreds of them take minutes. Every case ends in one of these ways:

- whole: the command ended as it would have without the attack, to the last bit
- refused: exit code 2 and one line that names what is wrong
- lost, wrong, traceback, hang, unnamed, left behind: defects, which are printed and give the exit code 1

A full disk needs a file system of its own, which only root can mount; others skip that class.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from advdrop.lab.cli.main import main as advdrop
from advdrop.lab.report.text_table import table as text_table
from chaos_library import library
from measure import progress, record, rows_of

COMMAND = "python benchmarks/chaos.py --json results/chaos.json"
DEFECTS = ("lost", "wrong", "traceback", "hang", "unnamed", "left behind")
PATIENCE = 45.0
"""Seconds after which a mistyped command is asked to stop."""
LIMIT = 90.0
"""Seconds after which a command is taken for hanging."""
SETTINGS = (
    "network.name=mlp", "network.hidden=[32,16]", "network.dropout=0.3", "network.delta=0.2", "objective.blend=0.25",
    "training.epoch_updates=10", "engine.checkpoint_seconds=0", "engine.accelerator=cpu",
)  # fmt: skip
TRAIN = (
    "train", "--quiet", "--dataset", "digits", "--method", "vadd-kl", "--updates", "40",
    *(word for setting in SETTINGS for word in ("--set", setting)),
)  # fmt: skip
"""A small run, with a checkpoint after every update."""


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        code: its exit code, minus the signal if one ended it; None if it took longer than the limit.
        text: what it printed.
    """

    code: int | None
    text: str

    def verdict(self, whole: Callable[[], bool], *, codes: tuple[int, ...] = (2,)) -> str:
        """Name the way it ended; ``whole`` says whether a success is that of an undisturbed command."""
        if self.code is None:
            return "hang"
        if "Traceback (most recent call last)" in self.text:
            return "traceback"
        if self.code == 0:
            return "whole" if whole() else "wrong"
        said = [line for line in self.text.splitlines() if line.startswith("advdrop: ") or "Usage: advdrop" in line]
        return "refused" if self.code in codes and said and len(said[-1]) > 20 else "unnamed"


def run(arguments: list[str], folder: Path, *, after: float | None = None, by: int = signal.SIGKILL) -> Ended:
    """Run a command in a forked process and wait for it.

    Args:
        arguments: what is typed after ``advdrop``.
        folder: the current folder.
        after: seconds after which a signal is sent, if any.
        by: the signal.
    """
    with TemporaryDirectory() as place:
        log = Path(place) / "log"
        log.touch()  # a process may be killed before it opens it
        child = os.fork()
        if not child:
            _become(arguments, folder, log)
        begin, sent = time.monotonic(), after is None
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"))
            waited = time.monotonic() - begin
            if not sent and after is not None and waited > after:
                os.kill(child, by)
                sent = True
            if waited > LIMIT:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return Ended(None, log.read_text(errors="replace"))
            time.sleep(0.005)


def _become(arguments: list[str], folder: Path, log: Path) -> None:
    """Run the command in this process, which ends with it."""
    code = 70
    try:
        os.chdir(folder)
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")  # as that of Python
        code = advdrop(arguments)
    except BaseException:  # the command line should have caught it
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code & 255)


# ---------------------------------------------------------------------------------------------------- kills and disks


def weights(path: Path) -> bytes:
    """The weights of a run."""
    file = path / "model.safetensors"
    return file.read_bytes() if file.is_file() else b""


def leftovers(folder: Path) -> list[str]:
    """Files that belong to no run and that the command did not find there."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*") if path.name != ".lock"]


@contextmanager
def reference() -> Iterator[tuple[Path, float]]:
    """A folder with a finished run, and the seconds that it took."""
    with TemporaryDirectory(prefix="chaos-") as place:
        folder = Path(place)
        begin = time.monotonic()
        ended = run([*TRAIN, "--out", "whole"], folder)
        if ended.code != 0:
            sys.exit(f"the run without an attack failed: {ended.text}")
        yield folder, time.monotonic() - begin


def resumed(folder: Path, name: str, other: tuple[str, ...] = ()) -> Ended:
    """Go on with a run, or start it if there is none."""
    there = (folder / name).exists()
    return run(["train", "--quiet", "--resume", name] if there else [*TRAIN, *other, "--out", name], folder)


def kills(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Kill or signal a run at a random time, resume it, and compare the weights; some of them replace another run."""
    with reference() as (folder, seconds):
        expected = weights(folder / "whole")
        for case in range(count):
            by = draw.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
            forced = draw.random() < 0.3
            name, after = f"run-{case}", draw.uniform(0, 1.1 * seconds)
            what = f"{by.name} after {after:.2f} s{', --force' if forced else ''}"
            if forced:
                shutil.copytree(folder / "whole", folder / name)
            force = ["--force", "--seed", "1"] if forced else []
            ended = run([*TRAIN, "--out", name, *force], folder, after=after, by=by)
            what += f": {ended.code} {ended.text.strip()[-160:]!r}"
            yield what, _after_kill(folder, name, ended, by, expected, forced)
            shutil.rmtree(folder / name, ignore_errors=True)


def _after_kill(folder: Path, name: str, ended: Ended, by: int, expected: bytes, forced: bool) -> str:
    if "Traceback" in ended.text:
        return "traceback"
    stopped = ended.code == 130 and "advdrop: stopped" in ended.text
    if by != signal.SIGKILL and not (ended.code == 0 or stopped or (ended.code == -by and not ended.text)):
        return "unnamed"  # a process that has said nothing had not begun
    if forced and not (folder / name).exists():
        return "lost"
    finished = (folder / name / "result.json").is_file()
    last = Ended(0, "") if finished else resumed(folder, name)
    if leftovers(folder):  # the next training in the same folder cleans up
        run([*TRAIN, "--updates", "1", "--out", "next"], folder)
        shutil.rmtree(folder / "next")
    # With --force, either the old run is whole or the new one can be finished.
    verdict = last.verdict(lambda: bool(weights(folder / name)) if forced else weights(folder / name) == expected)
    return "left behind" if verdict == "whole" and leftovers(folder) else verdict


def disks(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Fill the disk, make room, resume, and compare the weights."""
    if os.geteuid() or shutil.which("mount") is None:
        return
    with reference() as (folder, _):
        expected = weights(folder / "whole")
        size = sum(file.stat().st_size for file in (folder / "whole").rglob("*"))
        for case in range(count):
            disk = folder / f"disk-{case}"
            disk.mkdir()
            bytes_ = draw.randrange(4096, 2 * size)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={bytes_}", "tmpfs", str(disk)]
            if subprocess.run(mount, capture_output=True).returncode:
                return
            try:
                first = run([*TRAIN, "--out", "run"], disk)
                verdict = first.verdict(lambda disk=disk: weights(disk / "run") == expected, codes=(1, 2))  # type: ignore[misc]
                if verdict == "refused":
                    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
                    last = resumed(disk, "run")
                    verdict = last.verdict(lambda disk=disk: weights(disk / "run") == expected)  # type: ignore[misc]
                    verdict = "left behind" if verdict == "whole" and leftovers(disk) else verdict
            finally:
                subprocess.run(["umount", str(disk)], check=True)
            yield f"a disk of {bytes_} bytes", verdict


# ------------------------------------------------------------------------------------------------------ tampered runs


def mutated(draw: random.Random, content: bytes) -> tuple[str, bytes]:
    """Damage the content of a file in one of several ways."""
    place = draw.randrange(max(len(content), 1))
    noise = draw.randbytes(draw.choice([1, 8, 64]))
    number = draw.choice([b"-1", b"1e999", b"nan", b"999999999999999999999999999999", b"true", b'"x"', b"[]", b"null"])
    numbers = list(re.finditer(rb"(?<![\w.])-?\d+(\.\d+)?", content[:100_000]))
    ways: dict[str, bytes] = {
        "truncated": content[:place],
        "empty": b"",
        "bytes changed": content[:place] + noise + content[place + len(noise) :],
        "bytes inserted": content[:place] + noise + content[place:],
        "random bytes": draw.randbytes(200),
        "twice": content * 2,
        "deeply nested": draw.choice([b"[", b"{a: "]) * 100_000,
        "a list": b"[1, 2, 3]\n",
        "a word": b"hello\n",
    }
    if numbers:
        found = draw.choice(numbers)
        ways[f"number {number.decode()}"] = content[: found.start()] + number + content[found.end() :]
    name = draw.choice(list(ways))
    return name, ways[name]


def runs(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Damage, delete or exchange a file of a run, then use the run; a finished result must be the true one."""
    with reference() as (folder, seconds):
        expected = weights(folder / "whole")
        stopped = _stopped(folder, seconds)
        other = folder / "other"
        run([*TRAIN, "--seed", "5", "--out", "other"], folder)
        (folder / "digit.png").write_bytes(_picture(draw, "L"))
        truth = {
            "evaluate": _printed_error(run(["evaluate", "whole"], folder).text),
            "predict": run(["predict", "whole", "digit.png"], folder).text,
        }
        for case in range(count):
            path = folder / f"run-{case}"
            resume = draw.random() < 0.5
            shutil.copytree(stopped if resume else folder / "whole", path)
            file = draw.choice(sorted(each for each in path.iterdir() if each.name != ".lock"))
            way = draw.choice(["deleted", "exchanged", *["mutated"] * 6])
            if way == "deleted":
                file.unlink()
            elif file.name == "last.ckpt" and draw.random() < 0.5:
                way = _forge(draw, file)
            elif way == "exchanged" and (other / file.name).is_file():
                shutil.copy(other / file.name, file)
            else:
                way, content = mutated(draw, file.read_bytes())
                file.write_bytes(content)
            name = path.name
            uses = [["show", name], ["evaluate", name], ["report", name, "-o", f"{name}.html"], ["audit", name]]
            uses += [["predict", name, "digit.png"], ["export", name, "--format", "torch"]]
            command = ["train", "--quiet", "--resume", name] if resume else draw.choice(uses)
            ended = run(command, folder)
            if resume:
                verdict = ended.verdict(lambda path=path: weights(path) == expected)  # type: ignore[misc]
            elif command[0] == "evaluate":
                verdict = ended.verdict(lambda ended=ended: _printed_error(ended.text) == truth["evaluate"])  # type: ignore[misc]
            elif command[0] == "predict":
                verdict = ended.verdict(lambda ended=ended: ended.text == truth["predict"])  # type: ignore[misc]
            else:
                verdict = ended.verdict(lambda: True)
            yield f"{file.name} {way}, {command[0]}: {ended.text.strip()[-160:]!r}", verdict
            shutil.rmtree(path)


def _forge(draw: random.Random, file: Path) -> str:
    """Change the content of a checkpoint and save it as torch would; return what was changed."""
    state = torch.load(file, weights_only=True)
    key = draw.choice(sorted(state))
    forged: dict[str, Any] = {
        "without a key": {name: value for name, value in state.items() if name != key},
        "with a number": {**state, key: draw.choice([0, -1, 10**9, float("nan")])},
        "with a text": {**state, key: "x"},
        "with other shapes": {**state, "network": {name: torch.zeros(3) for name in state["network"]}},
        "with other weights": {**state, "network": {name: value * 2 for name, value in state["network"].items()}},
        "with more updates": {**state, "update": state["update"] + 1},
        "a list": [state],
        "code": print,
    }
    way = draw.choice(sorted(forged))
    torch.save(forged[way], file)
    return f"{way} ({key})"


def _stopped(folder: Path, seconds: float) -> Path:
    """A run that was stopped in the middle."""
    path = folder / "stopped"
    while not (path / "last.ckpt").is_file() or (path / "result.json").is_file():
        shutil.rmtree(path, ignore_errors=True)
        run([*TRAIN, "--out", "stopped"], folder, after=0.6 * seconds, by=signal.SIGTERM)
        seconds *= 0.9
    return path


def _printed_error(text: str) -> str:
    found = re.search(r"\d+\.\d+ ?%", text)
    return found[0] if found else text


# -------------------------------------------------------------------------------------------------------------- files


ROOT = Path(__file__).parents[1]
SUITE = ROOT / "src/advdrop/lab/suites/paper/table1.yaml"
RECORDS = ROOT / "results/ablation"
HARM = re.compile("<script|\u202e|\x1b|(^|,)=1")
"""What no page and no table may have in it."""


def _npz(draw: random.Random) -> bytes:
    rng = np.random.default_rng(draw.randrange(2**32))
    arrays: dict[str, Any] = {
        "x_train": rng.integers(0, 255, (40, 8, 8)).astype(draw.choice(["uint8", "float32"])),
        "y_train": np.arange(40) % 4,
        "x_test": rng.integers(0, 255, (8, 8, 8)).astype("uint8"),
        "y_test": np.arange(8) % 4,
    }
    odd: dict[str, Any] = {
        "no labels": {"y_train": None},
        "labels of text": {"y_train": np.array(["a", "b"] * 20)},
        "negative labels": {"y_train": -(np.arange(40) % 4) - 2},
        "labels nan": {"y_train": np.full(40, np.nan)},
        "too few labels": {"y_train": np.arange(3)},
        "nan": {"x_train": np.full((40, 8, 8), np.nan, "float32")},
        "infinite": {"x_train": np.full((40, 8, 8), np.inf, "float32")},
        "no rows": {"x_train": np.empty((0, 8, 8), "uint8"), "y_train": np.empty(0, int)},
        "no pixels": {"x_train": np.empty((40, 0, 0), "uint8")},
        "objects": {"x_train": np.array([{"a": 1}] * 40, dtype=object)},
        "complex": {"x_train": np.ones((40, 8, 8), complex)},
        "other sizes": {"x_test": np.zeros((8, 9, 9), "uint8")},
        "five dimensions": {"x_train": np.zeros((40, 1, 1, 8, 8), "uint8")},
        "as it should be": {},
    }
    arrays |= odd[draw.choice(list(odd))]
    file = io.BytesIO()
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file.getvalue()


def _picture(draw: random.Random, mode: str) -> bytes:
    image = Image.fromarray(np.frombuffer(draw.randbytes(64), "uint8").reshape(8, 8))
    file = io.BytesIO()
    image.convert(mode).save(file, "PNG")
    return file.getvalue()


def _images(draw: random.Random, folder: Path) -> Path:
    """A folder of images, one of them odd."""
    for name in ("a", "b"):
        for number in range(6):
            path = folder / "train" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_picture(draw, "L"))
    shutil.copytree(folder / "train", folder / "test")
    odd = draw.choice(sorted(folder.rglob("*.png")))
    eps = io.BytesIO()
    Image.new("L", (8, 8)).save(eps, "EPS")
    ways: list[Callable[[], Any]] = [
        lambda: odd.write_bytes(eps.getvalue()),
        lambda: odd.parent.rename(odd.parent.with_name(draw.choice(["\x1b[2J", "\u202ea", "\udcff", "a\n", "=1"]))),
        lambda: odd.write_bytes(mutated(draw, odd.read_bytes())[1]),
        lambda: odd.write_bytes(_picture(draw, draw.choice(["RGB", "1", "P", "RGBA", "LA", "I;16"]))),
        lambda: odd.write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        lambda: odd.write_bytes(_huge_png()),
        odd.unlink,
        lambda: _instead(odd, Path.mkdir),
        lambda: _instead(odd, lambda path: path.symlink_to(path)),
        lambda: (odd.parent / "b\n<script>.png").write_bytes(b"x"),
        lambda: shutil.rmtree(odd.parent),
        lambda: _instead(odd, os.mkfifo),
    ]
    draw.choice(ways)()
    return folder


def _instead(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


def _huge_png() -> bytes:
    """A file of a few bytes that says that it has 60,000 x 60,000 pixels."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")


def _idx(draw: random.Random, folder: Path) -> tuple[Path, str]:
    """The four files of MNIST, one of them damaged."""
    target = folder / "mnist"
    target.mkdir()
    for part, rows in (("train", 30), ("t10k", 10)):
        images = struct.pack(">IIII", 2051, rows, 28, 28) + draw.randbytes(rows * 784)
        labels = struct.pack(">II", 2049, rows) + bytes(number % 10 for number in range(rows))
        for name, content in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            (target / f"{name}.gz").write_bytes(gzip.compress(content))
    if draw.random() < 0.2:
        bomb = draw.choice(sorted(target.iterdir()))
        bomb.write_bytes(bomb.read_bytes() + gzip.compress(bytes(1 << 26)) * 40)
        return folder, "mnist"
    return _damage(draw, target), "mnist"


def _cifar(draw: random.Random, folder: Path) -> tuple[Path, str]:
    """The binary files of CIFAR-10, one of them damaged."""
    target = folder / "cifar-10-batches-bin"
    target.mkdir()
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        rows = [bytes([number % 10]) + draw.randbytes(3072) for number in range(20)]
        (target / name).write_bytes(b"".join(rows))
    if draw.random() < 0.5:
        return _damage(draw, target), "cifar10"
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for file in sorted(target.iterdir()):
            archive.add(file, draw.choice(["", "../", "/"]) + file.name)
    shutil.rmtree(target)
    content = bytearray(tar.getvalue())
    if draw.random() < 0.5:  # another type or size of a member, with a right checksum
        start, odd = draw.choice(
            [(124, b"\xff" * 12), (124, b"\x80" + b"\x7f" * 11), (156, b"S"), (156, b"2"), (156, b"x")]
        )
        content[start : start + len(odd)] = odd
        content[148:156] = b"%06o\0 " % (sum(content[:148]) + sum(content[156:512]) + 8 * 32)
    packed = gzip.compress(content, 1)
    bomb = gzip.compress(bytes(1 << 26)) * 40 if draw.random() < 0.2 else b""
    (folder / "cifar-10-binary.tar.gz").write_bytes(draw.choice([packed, mutated(draw, packed)[1]]) + bomb)
    return folder, "cifar10"


def _svhn(draw: random.Random, folder: Path) -> tuple[Path, str]:
    """The two files of SVHN, one of them damaged."""
    from scipy.io import savemat

    target = folder / "svhn"
    target.mkdir()
    for part in ("train", "test"):
        pixels = np.frombuffer(draw.randbytes(32 * 32 * 3 * 20), "uint8").reshape(32, 32, 3, 20)
        packed = draw.random() < 0.5
        odd = draw.choice([pixels] * 5 + [np.array([{}], object), pixels.astype(float), np.array(["text"])])
        content = {"X": odd, "y": (np.arange(20) % 10 + 1)[:, None]}
        savemat(target / f"{part}_32x32.mat", content, do_compression=packed)
    if draw.random() < 0.5:
        return _damage(draw, target), "svhn"
    file = draw.choice(sorted(target.iterdir()))
    head = bytearray(file.read_bytes())
    head[draw.randrange(120, 250)] = draw.randrange(256)  # the tags are there
    file.write_bytes(head)
    return folder, "svhn"


def _damage(draw: random.Random, target: Path) -> Path:
    file = draw.choice(sorted(target.iterdir()))
    file.write_bytes(mutated(draw, file.read_bytes())[1])
    return target.parent


def _suite(draw: random.Random) -> bytes:
    """A suite with a mistake or with an attack on the reader."""
    laughs = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    attacks = (
        f"a0: &a0 [x]\n{laughs}",
        "&a {b: *a}",
        "!!python/object/apply:os.system [exit 7]",
        "!!timestamp x",
        "1" * 30,
    )
    if draw.random() < 0.3:
        return draw.choice(attacks).encode()
    text = draw.choice(
        ["\x1b[2J", "<script>", "'\"", "9" * 30, "[" * 99, "..", "~", "{a: 1}", "1e999", "-1", "x" * 200_000]
    )
    content = _own_suite()
    value = draw.choice(re.findall(r"(?<=: )[^\n{}\[\],]+", content))
    return content.replace(value, text, 1).encode()


def _own_suite() -> str:
    return re.sub("dataset: (mnist|svhn|cifar10)", "dataset: digits", SUITE.read_text(encoding="utf-8"))


def _json(draw: random.Random, record: str) -> bytes:
    """A record with other values in it and the digest that belongs to them."""
    values = json.loads(record)
    odd: list[Any] = ["<script>alert(1)</script>", "=1+1", "\u202e\x1b[2J", "x" * 5000, 10**30, -1, None, [], {}, 1e300]
    values[draw.choice(sorted(values))] = draw.choice(odd)
    kept = {key: value for key, value in values.items() if key != "digest"}
    values["digest"] = hashlib.sha256(json.dumps(kept, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    return json.dumps(values).encode()


def files(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Use a hostile file: arrays, pictures, the files of MNIST, CIFAR-10 and SVHN, suites and records."""
    record = next(path for path in sorted(RECORDS.rglob("*.json"))).read_text(encoding="utf-8")
    for _ in range(count):
        with TemporaryDirectory(prefix="chaos-") as place:
            folder = Path(place)
            kind = draw.choice(["npz", "damaged npz", "images", "idx", "cifar", "svhn", "suite", "record"])
            command = ["train", "--quiet", "--updates", "2", "--out", "run", "--labels", "8", "--method", "dropout"]
            if kind.endswith("npz"):
                content = _npz(draw)
                (folder / "own.npz").write_bytes(content if kind == "npz" else mutated(draw, content)[1])
                command += ["--dataset", "own.npz"]
            elif kind == "suite":
                content = draw.choice([_suite(draw), mutated(draw, _own_suite().encode())[1]])
                (folder / "own.yaml").write_bytes(content)
                command = ["reproduce", "own.yaml", "--dry-run"]
            elif kind == "record":
                content = draw.choice([_json(draw, record), mutated(draw, record.encode())[1]])
                (folder / "own.json").write_bytes(content)
                command = ["report", "own.json", "-o", f"page{draw.choice(['.html', '.md', '.csv', '.json', '.tex'])}"]
            elif kind == "images":
                command += ["--dataset", str(_images(draw, folder / "own"))]
            else:
                makers = {"idx": _idx, "cifar": _cifar, "svhn": _svhn}
                data, name = makers[kind](draw, folder)
                command += ["--dataset", name, "--data-dir", str(data)]  # which checks no checksum
            before = sorted(folder.rglob("*"))
            ended = run(command, folder)
            pages = [path.read_text(encoding="utf-8") for path in folder.glob("page.*")]
            verdict = ended.verdict(lambda pages=pages: not any(map(HARM.search, pages)))  # type: ignore[misc]
            if verdict == "refused" and sorted(folder.rglob("*")) != before:
                verdict = "left behind"
            yield f"{kind}: {ended.text.strip()[-200:]!r}", verdict


# ----------------------------------------------------------------------------------------------------------- commands

BASES = (
    "train --dataset digits --updates 1 --quiet", "train first --dataset digits --updates 1 --quiet --out out",
    "train --dry-run", "compare --dataset digits --methods dropout,pi --seeds 1 --updates 1 --jobs 1 --quiet",
    "compare --dry-run", "reproduce table1 --dry-run", "reproduce", "report .", "show .", "evaluate precious",
    "explain precious", "audit precious", "predict precious precious",
    "export precious", "data list", "data check mnist", "data get digits",
)  # fmt: skip
OPTIONS = (
    "--labels", "--seed", "--seeds", "--updates", "--method", "--methods", "--dataset", "--out", "--set", "--config",
    "--preset", "--data-dir", "--resume", "--jobs", "--only", "--columns", "--protocol", "--image", "-o", "--force",
    "--results", "--scheduler", "--size", "--no-such-option",
)  # fmt: skip
VALUES = (
    "0", "-1", "1", "3", "1e9", "99999999999999999999999999", "nan", "inf", "all", "", " ", "\0", "é\n", "../x", "/",
    ".", "..", "~", "-", "--", "vadd-kl", "vadd-kl+vat", "+", "vadd-kl+vadd-kl", "mnist5k", "digits", "table1",
    "no/such/file", "network.delta=2", "network.delta=", "=", "a.b.c=1", "training.labeled=2000000",
    "training.updates=1e18", "network.hidden=[1000000000]", "vat.epsilon=-1", "{", "[", "&a [*a]", "runs",
    "config.yaml", "report.html", "precious", "x/../precious", "../precious", "data.validation=99999999",
    "engine.accumulate=0", "\ud800", "link", "precious/deeper", "link/../precious", "loop", "./",
    "network.hidden=[99999,99999]", "vat.iterations=1000000000", "engine.devices=1000",
)  # fmt: skip


def commands(draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Type a command with mistakes, in a folder with something of the user's in it that must stay as it is."""
    for _ in range(count):
        with TemporaryDirectory(prefix="chaos-") as place:
            folder = Path(place) / "here"
            for path in (folder / "precious", folder.parent / "precious"):
                path.mkdir(parents=True)
                (path / "config.yaml").write_text("mine\n")
                (path / "thesis.txt").write_text("years of work\n")
            (folder / "report.html").write_text("mine\n")
            (folder / "link").symlink_to("precious")
            (folder / "loop").symlink_to("loop")
            typed = draw.choice(BASES).split()
            for _ in range(draw.randrange(1, 4)):
                way, at = draw.random(), draw.randrange(1, len(typed) + 1)
                if way < 0.6:
                    typed[at:at] = [draw.choice(OPTIONS), draw.choice(VALUES)]
                elif way < 0.9:
                    typed[at : at + 1] = [draw.choice(VALUES)]
                else:
                    del typed[at : at + 1]
            before = _content(folder.parent)
            ended = run(typed, folder, after=PATIENCE, by=signal.SIGTERM)
            now = _content(folder.parent)
            kept = all(now.get(name) == content for name, content in before.items())
            trained = ended.code == 130 and "resume with" in ended.text  # no mistake at all, so it really trains
            verdict = "lost" if not kept else "whole" if trained else ended.verdict(lambda: True, codes=(1, 2))
            if verdict == "refused" and now != before:
                verdict = "left behind"
            yield f"advdrop {' '.join(map(repr, typed))}: {ended.text.strip()[-200:]!r}", verdict


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


# ------------------------------------------------------------------------------------------------------------- record

CLASSES: dict[str, tuple[Callable[[random.Random, int], Iterator[tuple[str, str]]], int]] = {
    "kills": (kills, 100),
    "disks": (disks, 200),
    "runs": (runs, 300),
    "files": (files, 300),
    "commands": (commands, 300),
    "library": (library, 1000),
}
"""The attacks and how many cases of each are run by default."""


def table(rows: list[dict[str, Any]]) -> str:
    """The counts of the record, for the page."""
    head = ["attack", "cases", "whole", "refused", *DEFECTS]
    ordered = sorted(rows, key=lambda row: list(CLASSES).index(row["attack"]))
    return text_table(head, [[str(row[name]) for name in head] for row in ordered]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CLASSES), default=list(CLASSES))
    parser.add_argument("--count", type=int, help="cases of each attack")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    advdrop(["train", "--dry-run", "--dataset", "digits"])  # imports what the forked processes share
    rows = {row["attack"]: row for row in rows_of(options.json)} if options.json and options.json.exists() else {}
    bad = 0
    for name in options.only:
        attack, usual = CLASSES[name]
        found: Counter[str] = Counter()
        cases = options.count or usual
        for number, (what, verdict) in enumerate(attack(random.Random(f"{options.seed} {name}"), cases), start=1):
            found[verdict] += 1
            progress(f"{name}: {number} of {cases}")
            if verdict in DEFECTS:
                bad += 1
                print(f"{name} {number}: {verdict}: {what}", flush=True)
        progress("")
        if found:
            counts = {key: found[key] for key in ("whole", "refused", *DEFECTS)}
            rows[name] = {"attack": name, "seed": options.seed, "cases": found.total(), **counts}
    print(table(list(rows.values())))
    if options.json:
        record(options.json, list(rows.values()), COMMAND)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
