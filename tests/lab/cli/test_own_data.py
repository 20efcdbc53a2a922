"""Your own pictures, from a folder as people have it to a run that goes on."""

import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from advdrop.lab.config.config import RunConfig
from advdrop.lab.engine import RunDirectory
from advdrop.lab.engine.jobs import cached_data
from advdrop.lab.records.record import record_of
from advdrop.lab.suites.suite import OPTIONAL
from commands import says
from runs import tiny

CLASSES = ("Kreis ●", "正方形")
MODES = ("RGB", "L", "P", "RGBA", "LA", "CMYK", "I;16", "1")
SHORT = ["--updates", "3", "--set", "training.epoch_updates=3", "--set", "engine.accelerator=cpu", "--quiet"]
ALONE = [*SHORT, "--no-baseline"]
SMALL = ["--set", "network.name=mlp", "--set", "network.hidden=[8]", "--set", "network.delta=0.3"]


def picture(number, draw):
    """A circle or a square of any color on any other, in a picture of any size and mode."""
    width, height = draw.integers(20, 90, 2)
    image = Image.new("RGB", (int(width), int(height)), tuple(draw.integers(0, 100, 3).tolist()))
    pencil, color = ImageDraw.Draw(image), tuple(draw.integers(150, 255, 3).tolist())
    box = (width // 4, height // 4, 3 * width // 4, 3 * height // 4)
    (pencil.ellipse if number % 2 == 0 else pencil.rectangle)(box, fill=color)
    mode = MODES[number // 2 % len(MODES)]
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)
    return image.convert(mode)


def folder_of(root, count, seed=0, classes=CLASSES):
    """A quarter of the pictures has a label; three files are no pictures."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        where = root / (classes[number % 2] if number < count // 4 else "unlabeled")
        where.mkdir(parents=True, exist_ok=True)
        image = picture(number, draw)
        suffix = "jpg" if image.mode in ("RGB", "L", "CMYK") and number % 3 else "png"
        image.convert("RGB" if image.mode == "CMYK" and suffix == "png" else image.mode).save(
            where / f"Bild-ü-写真 {number}.{suffix}"
        )
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    huge = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    (root / "unlabeled/huge.png").write_bytes(huge)
    (root / "unlabeled/drawing.png").write_text("<svg/>")
    (root / "unlabeled/cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    return root


def test_a_folder_as_people_have_it(capsys, tmp_path):
    folder_of(tmp_path / "pictures", 80)
    code, out, _ = says(capsys, "data", "check", "pictures")
    assert code == 0
    assert "become" in out.splitlines()[0]
    assert "read 80 of 83 images: " in out
    assert "converted to RGB, 3 skipped (unlabeled/cut.jpg: " in out
    assert "76 training examples of (3, 60, 60)" in out
    assert "16 of them labeled, 4 test examples, 2 classes: Kreis ●, 正方形" in out
    code, out, err = says(capsys, "train", "first", "--dataset", "pictures", *ALONE, "--size", "20", *SMALL)
    assert code == 0
    assert "become 20×20, in color" in err
    assert "read 80 of 83 images: 80 resized" in err
    assert err.count("2 classes: Kreis ●, 正方形\n") == 1
    config = RunDirectory.open(tmp_path / "runs/first").config
    assert (config.labels, config.data.size, config.data.color) == ("all", (20, 20), "rgb")
    assert says(capsys, "evaluate", "runs/first")[0] == 0
    code, out, _ = says(capsys, "train", "--resume", "runs/first", "--updates", "6", "--quiet", "--no-baseline")
    assert (code, RunDirectory.open(tmp_path / "runs/first").result["updates"]) == (0, 6)
    folder_of(tmp_path / "others", 40, seed=1, classes=("a", "b", "c")[:2])
    typed = ["train", "second", "--from", "runs/first", "--dataset", "others", *SHORT[:-1], "--no-baseline"]
    code, out, err = says(capsys, *typed)
    assert code == 0
    assert f"starts with the weights of {tmp_path / 'runs/first'}; the last layer is new, for 2 classes" in err
    second = RunDirectory.open(tmp_path / "runs/second").config
    assert (second.data.size, second.network) == ((20, 20), config.network)
    assert second.start.run == tmp_path / "runs/first"


@pytest.mark.parametrize("given", [{}, {"data": {"size": 20, "color": "gray"}}])
def test_a_suite_of_pictures_uses_those_without_a_label(capsys, tmp_path, given):
    folder_of(tmp_path / "pictures", 40)
    settings = {"training": {"updates": 2, "epoch_updates": 2}, "engine": {"accelerator": "cpu"}, **given}
    suite = {
        **dict.fromkeys(("title", "about", "source"), "mine"),
        "repeats": 1,
        "columns": {"few": {"name": "few", "dataset": "pictures", "labels": "all"}},
        "rows": {"pi": {"name": "pi", "method": "pi", "settings": {"network": {"name": "mlp", "hidden": [8]}}}},
        "protocols": {"short": {"about": "2 updates", "seeds": 1, "settings": settings}},
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(suite))
    code, _, err = says(capsys, "reproduce", "mine.yaml", "--preset", "robust", "--jobs", "1", "--quiet")
    assert code == 0
    run = RunDirectory.open(next((tmp_path / "runs/reproduce").glob("pictures-all-pi-0-*")))
    assert run.config.training.unlabeled > 0
    assert run.config.data.color == ("gray" if given else "rgb")
    assert run.config.data.size == tuple(run.result["shape"][1:])
    if given:
        assert run.result["shape"] == [1, 20, 20]
    assert record_of(run).half_labeled
    assert err.count("2 classes: ") == 1
    assert says(capsys, "report", "results", "mine.yaml")[0] == 0  # its record is that of the suite


def test_a_class_with_too_few_labels_is_called_by_its_name(capsys, tmp_path):
    folder_of(tmp_path / "pictures", 40, classes=("cat", "dog"))
    code, _, err = says(capsys, "train", "--dataset", "pictures", "--labels", "12", *ALONE, *SMALL)
    assert code == 2
    assert "labels=12 would take 6 labeled examples of class cat, which has 4; ask for fewer" in err


def test_a_comparison_of_pictures_and_its_workers_read_them_in_the_same_way(capsys, tmp_path):
    folder_of(tmp_path / "pictures", 40)
    folder_of(tmp_path / "more", 8, seed=2)
    typed = [
        "compare",
        "--dataset",
        "pictures",
        "--unlabeled",
        "more",
        "--color",
        "grey",
        "--size",
        "20",
        *SHORT,
        *SMALL,
    ]
    code, _, err = says(capsys, *typed, "--methods", "dropout,pi", "--out", "c", "--jobs", "1")
    assert code == 0, err
    runs = [RunDirectory.open(tmp_path / "c" / name) for name in ("dropout-0", "pi-0")]
    assert len({run.split.dataset for run in runs}) == 1
    assert {run.result["examples"] for run in runs} == {38 + 8}
    assert runs[0].config.unlabeled == tmp_path / "more"
    config = runs[0].config
    assert config.data.color == "gray"
    read = cached_data(config.dataset, config.data_dir, config.data.size, config.data.color, config.unlabeled)
    assert read.checksum == runs[0].split.dataset


def test_a_table_of_labels(capsys, tmp_path):
    folder_of(tmp_path / "pictures", 40)
    files = sorted((tmp_path / "pictures/unlabeled").glob("Bild*"))
    rows = [f"{number},pictures/unlabeled/{file.name},{'ab'[number % 2]}" for number, file in enumerate(files[:12])]
    (tmp_path / "labels.csv").write_text("\n".join([",path,label", *rows]))
    typed = ["train", "--dataset", "labels.csv", "--unlabeled", "pictures", *ALONE, *SMALL, "--size", "16"]
    code, _, err = says(capsys, *typed)
    assert code == 0, err
    assert "read 40 of 43 images" in err
    assert RunDirectory.open(tmp_path / "runs/labels-all-vadd-qe-0").result["examples"] == 38


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train --size big", "data.size must be auto, or a number of pixels from 1 to 1024 such as 64, got 'big'"),
        ("train --size 0", "data.size must be auto, or a number of pixels from 1 to 1024 such as 64, got '0'"),
        ("train --size 9999", "got '9999'"),
        ("train --color blue", "'blue' is not one of 'auto', 'rgb', 'gray', 'grey'"),
        ("train --set data.color=blue", "data.color should be 'rgb' or 'gray', got 'blue'"),
        ("train --dataset digits --size 8", "size=(8, 8) is for folders of images and CSV files"),
        ("train --dataset digits --unlabeled .", "unlabeled=. is for folders of images"),
        ("train --dataset empty", "empty: no training images with a label; it needs train/CLASS"),
        ("train --dataset odd", "odd: none of 6 images can be read (a/0.png: not an image"),
        ("train --dataset odd --unlabeled nowhere", "nowhere is not a folder"),
        ("train --from nowhere", "nowhere is not a run"),
        ("train --resume nowhere --from nowhere", "--resume uses the configuration of the run; leave out --from"),
        ("train --set unlabeled=[1]", "unlabeled must be a text, got [1]"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, typed, said):
    (tmp_path / "empty").mkdir()
    for number in range(6):
        file = tmp_path / "odd" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    code, out, err = says(capsys, *typed.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_run_of_another_network_is_refused(capsys, tmp_path):
    folder_of(tmp_path / "pictures", 40)
    assert says(capsys, "train", "first", "--dataset", "pictures", *ALONE, *SMALL, "--size", "16")[0] == 0
    for more, said in (
        (["--set", "network.name=resnet18"], "has the network mlp, so --from cannot start resnet18 with it"),
        (["--size", "20"], "--from needs the same settings of the network and examples of the same size"),
    ):
        code, _, err = says(capsys, "train", "--from", "runs/first", "--dataset", "pictures", *SHORT, *more)
        assert code == 2
        assert said in err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]


def test_a_configuration_without_the_new_keys_is_read():
    values = tiny().model_dump()
    for section, key in OPTIONAL:
        (values[section] if section else values).pop(key, None)  # not all networks have all keys
    assert RunConfig.of(values) == tiny()
