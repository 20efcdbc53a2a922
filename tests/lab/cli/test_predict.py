"""``advdrop predict`` on folders as people have them."""

import csv
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from advdrop.lab.cli import predict
from advdrop.lab.engine import train
from advdrop.lab.engine.model import load
from bad_pictures import SVG, huge_png
from commands import says
from runs import rings, tiny

UNREADABLE = {"cut.png": "cannot be read", "drawing.png": "cannot identify image", "huge.png": "Image size"}


@pytest.fixture
def photos(image_run, tmp_path, monkeypatch):
    """Nine good images in two folders, three bad ones, and what is no image, in the present folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(image_run[0])
    x = image_run[1].test.x[:9].numpy().transpose(0, 2, 3, 1)
    (tmp_path / "photos" / "größe.png").mkdir(parents=True)  # a folder that is named like an image
    for number, array in enumerate(x):
        folder = tmp_path / "photos" / ("größe.png" if number % 2 else ".")
        Image.fromarray(array).save(folder / f"数字 {number}.png")
    for name, content in {"cut.png": b"\x89PNG\r\n\x1a\n", "drawing.png": SVG, "huge.png": huge_png()}.items():
        (tmp_path / "photos" / name).write_bytes(content)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / ".hidden.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path / "photos"


def list_of_paths(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))


def expected(image_run):
    model, x = load(image_run[0]), image_run[1].test.x[:9]
    return {f"数字 {number}.png": name for number, name in enumerate(model.predict(x))}


def test_a_folder_with_bad_files_among_good_ones(photos, image_run, capsys):
    code, out, err = says(capsys, "predict", "run", "photos")
    assert code == 1
    found = {line.split("/")[-1]: line.split()[0] for line in out.splitlines()}
    assert found == expected(image_run)
    assert len({line.index("photos/") for line in out.splitlines()}) == 1  # the paths are in one column
    first, *rest = err.splitlines()
    assert first == "advdrop: 3 of 12 files could not be read:"
    for line, (name, reason) in zip(rest, UNREADABLE.items(), strict=True):
        assert line.startswith(f"  photos/{name}: ")
        assert reason in line


@pytest.mark.parametrize(
    "given", [["photos/数字*.png"], ["photos/**/数字*"], ["photos/größe.png", "photos/数字 0.png"]]
)
def test_files_folders_and_patterns(given, photos, image_run, capsys):
    code, out, err = says(capsys, "predict", "run", *given)
    assert (code, err) == (0, "")
    found = {line.split("/")[-1]: line.split()[0] for line in out.splitlines()}
    assert len(found) == {"photos/数字*.png": 5, "photos/**/数字*": 9}.get(given[0], 5)
    assert found.items() <= expected(image_run).items()


def test_paths_on_stdin_each_once(photos, capsys, monkeypatch):
    list_of_paths(monkeypatch, "photos/数字 0.png\r\n\nphotos/größe.png\nphotos/数字 0.png\n".encode())
    code, out, _ = says(capsys, "predict", "run", "-")
    assert (code, out.count("\n")) == (0, 5)


@pytest.mark.parametrize("name", [b"~$office.png", b"~nobody.png", b"old \xe9.png"])
def test_no_name_on_stdin_stops_the_others(name, photos, capsys, monkeypatch):
    Path(os.fsdecode(name)).write_bytes(Path("photos/数字 0.png").read_bytes())
    list_of_paths(monkeypatch, name + "\nphotos/数字 0.png\n".encode())
    code, out, _ = says(capsys, "predict", "run", "-")
    assert (code, out.count("\n")) == (0, 2)


@pytest.mark.parametrize("given", [["empty"], ["nothing.png"], ["none/*.png"], ["empty", "-"]])
def test_no_images_is_told_in_one_line(given, photos, capsys, monkeypatch):
    list_of_paths(monkeypatch, b"")
    code, out, err = says(capsys, "predict", "run", *given, "--out", "o.csv")
    assert (code, out) == (2, "")
    assert err == f"advdrop: no images in {', '.join(given)}; give image files, folders of them or patterns\n"
    assert not (photos.parent / "o.csv").exists()


def test_a_path_that_is_mistyped_does_not_stop_the_others(photos, capsys):
    os.mkfifo("pipe.png")
    code, out, err = says(capsys, "predict", "run", "photos/数字 0.png", "photo/1.png", "pipe.png")
    assert (code, out.count("\n")) == (1, 1)
    assert err.splitlines()[1:] == ["  photo/1.png does not exist", "  pipe.png is not a file"]


def test_a_name_that_is_too_long_does_not_stop_the_others(photos, capsys):
    name = 300 * "a"
    code, out, err = says(capsys, "predict", "run", f"{name}.png", f"{name}*.png", "photos/数字 0.png")
    assert (code, out.count("\n")) == (1, 1)
    assert err.count("File name too long") == 2
    assert says(capsys, "predict", "run", name)[2].startswith("advdrop: no images in aaa")


def test_csv_and_json_have_a_row_for_each_file(photos, image_run, capsys):
    code, out, _ = says(capsys, "predict", "run", "photos", "--out", "new/all.csv", "--top", "2")
    assert code == 1
    assert "9 images: " in out
    assert out.endswith("; written to new/all.csv\n")
    with Path("new/all.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "class", "probability", "class_2", "probability_2", "error"]
    assert {row["path"].split("/")[-1]: row["class"] for row in rows if row["class"]} == expected(image_run)
    assert {row["path"].split("/")[-1] for row in rows if row["error"]} == UNREADABLE.keys()
    says(capsys, "predict", "run", "photos", "-o", "all.json", "--top", "2")
    told = json.loads((photos.parent / "all.json").read_text(encoding="utf-8"))
    for row, other in zip(rows, told, strict=True):
        assert row["path"] == other["path"]
        assert row["error"] == other.get("error", "")
        if not row["error"]:
            top = [{"class": row[f"class{end}"], "probability": float(row[f"probability{end}"])} for end in ("", "_2")]
            assert other["top"] == top
            assert top[0]["probability"] >= top[1]["probability"]


@pytest.mark.parametrize("out", ["o.txt", "o", "folder.csv", "o.csv.png"])
def test_another_ending_is_refused_before_anything_is_read(out, photos, capsys):
    (photos.parent / "folder.csv").mkdir()
    code, _, err = says(capsys, "predict", "no run", "photos", "--out", out)
    said = "was not written by advdrop and is left as it is" if out.endswith("csv") else "does not end in .csv or .json"
    assert (code, err) == (2, f"advdrop: {out} {said}; choose another --out\n")


@pytest.mark.usefixtures("photos")
@pytest.mark.parametrize("name", ["data.csv", "data.json"])
def test_a_file_of_somebody_else_is_kept(name, capsys):
    Path(name).write_text("mine")
    code, _, err = says(capsys, "predict", "run", "photos", "--out", name)
    assert (code, err) == (
        2,
        f"advdrop: {name} was not written by advdrop and is left as it is; choose another --out\n",
    )
    assert Path(name).read_text() == "mine"
    Path(name).unlink()
    # Its own file is replaced.
    assert [says(capsys, "predict", "run", "photos", "--out", name)[0] for _ in range(2)] == [1, 1]


def test_more_images_than_a_batch_and_many_bad_ones(photos, image_run, capsys, monkeypatch):
    monkeypatch.setattr(predict, "BATCH", 4)
    monkeypatch.setattr(predict, "LISTED", 2)
    _, out, err = says(capsys, "predict", "run", "photos")
    assert {line.split("/")[-1]: line.split()[0] for line in out.splitlines()} == expected(image_run)
    assert err.splitlines()[-1] == "  and 1 more; a file given by --out lists all of them"


def test_a_run_that_cannot_classify_images(photos, capsys):
    train(tiny(), "table", data=rings(), progress=False)
    code, _, err = says(capsys, "predict", "table", "photos")
    assert (code, err.count("\n")) == (2, 1)
    assert "table classifies arrays of shape (6,), not images; use it from Python: advdrop.lab.load('table')" in err
    Path("table/result.json").unlink()
    code, _, err = says(capsys, "predict", "table", "photos")
    assert (code, err) == (2, "advdrop: table is not finished; resume it with: advdrop train --resume table\n")


def test_names_that_would_do_something_elsewhere(image_run, tmp_path, monkeypatch, capsys):
    """A spreadsheet sees no formula, a terminal no control character, and broken text can be written."""
    monkeypatch.chdir(tmp_path)
    names = [b"=cmd.png", b'+"a,b".png', b"\x1b[2Jred.png", b"line\nbreak.png", b"\xff.png"]
    image = Image.fromarray(image_run[1].test.x[0].numpy().transpose(1, 2, 0))
    for name in names:
        image.save(os.fsdecode(name), format="png")
    code, out, _ = says(capsys, "predict", image_run[0], *map(os.fsdecode, sorted(names)))
    assert (code, len(out.splitlines())) == (0, 5)
    assert "\x1b" not in out
    assert says(capsys, "predict", image_run[0], ".", "--out", "o.csv")[0] == 0
    assert says(capsys, "predict", image_run[0], ".", "--out", "o.json")[0] == 0
    with Path("o.csv").open(newline="", encoding="utf-8") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    told = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert sum(path.startswith("./") for path in paths) == 2
    assert [path.removeprefix("./") for path in paths] == [each["path"] for each in told]
    assert r"\xff.png" in paths
    done = [predict.Prediction("=1.png", (("=A1", 0.5), ("-2", 0.25)))]
    assert predict.as_csv(done).splitlines()[1] == "./=1.png,'=A1,0.500000,-2,0.250000,"


def test_wide_letters_stay_in_columns():
    rows = [predict.shown(predict.Prediction("x", ((name, 0.5),)), ("猫", "dog")) for name in ("猫", "dog")]
    assert rows == ["猫    50.0 %  x", "dog   50.0 %  x"]


def test_the_probabilities_are_those_of_the_model(photos, image_run):
    paths = sorted(photos.glob("数字*"))
    found = list(predict.predictions(load(image_run[0]), paths, 3))
    wanted = load(image_run[0]).predict_proba(paths)
    names = image_run[1].classes
    assert [dict(each.top) for each in found] == [dict(zip(names, map(float, row), strict=True)) for row in wanted]
    assert np.allclose(wanted.sum(1), 1)


def test_a_link_to_a_folder_is_not_left_out_in_silence(photos, capsys):
    for name in UNREADABLE:
        (photos / name).unlink()
    (photos / "loop").symlink_to(photos)
    code, out, err = says(capsys, "predict", "run", "photos")
    assert code == 1
    assert len(out.splitlines()) == 9
    assert "photos/loop is a folder" in err
