"""``advdrop predict``: from files, folders, patterns and lists of paths to classes."""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len
from tqdm import tqdm

from advdrop.lab.cli.options import Predict
from advdrop.lab.cli.report import refuse_foreign
from advdrop.lab.data.examples import DataError
from advdrop.lab.data.inputs import stored_image
from advdrop.lab.data.pictures import SUFFIXES
from advdrop.lab.engine.evaluate import BATCH
from advdrop.lab.engine.model import Model, load
from advdrop.lab.files import write_text
from advdrop.lab.report.text_table import is_formula, line

LISTED = 20
"""How many of the files that cannot be read are listed."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of a file with their probabilities, or the reason why there are none."""

    path: str
    top: tuple[tuple[str, float], ...] = ()
    error: str = ""


def run_predict(options: Predict) -> int:
    """Classify images; return 1 if some of them cannot be read."""
    if options.out is not None:
        refuse_foreign(options.out, *FORMATS, signs=SIGNS)
    model = image_model(options.run)
    found = images_of(options.images)
    if not any(map(os.path.exists, found)):
        raise ValueError(f"no images in {', '.join(options.images)}; give image files, folders of them or patterns")
    done = []
    with tqdm(total=len(found), unit="image", delay=2, leave=False, disable=None) as bar:
        for prediction in predictions(model, found, options.top, bar.update):
            done.append(prediction)
            if options.out is None and not prediction.error:
                tqdm.write(shown(prediction, model.classes), file=sys.stdout)
    bad = [prediction for prediction in done if prediction.error]
    if options.out is not None:
        write_text(options.out, FORMATS[options.out.suffix](done), parents=True)
        counts = Counter(prediction.top[0][0] for prediction in done if prediction.top).most_common()
        classes = ", ".join(f"{line(name)} ({count:,})" for name, count in counts)
        print(f"{len(done) - len(bad):,} images: {classes or 'no classes'}; written to {options.out}")
    if bad:
        print(f"advdrop: {len(bad):,} of {len(done):,} files could not be read:", file=sys.stderr)
        print("\n".join(f"  {line(each.error)}" for each in bad[:LISTED]), file=sys.stderr)
        if len(bad) > LISTED:
            print(f"  and {len(bad) - LISTED:,} more; a file given by --out lists all of them", file=sys.stderr)
    return 1 if bad else 0


def image_model(run: Path) -> Model:
    """Return the model of a run that was trained on images."""
    model = load(run)
    if not model.takes_images:
        raise ValueError(
            f"{run} classifies arrays of shape {model.shape}, not images; use it from Python: "
            f"advdrop.lab.load({str(run)!r}).predict(array)"
        )
    return model


def images_of(arguments: Sequence[str]) -> list[Path]:
    """Return the files that arguments name, each once: files, folders, patterns, and ``-`` for paths on stdin.

    A file that is named is tried whatever its name is. In folders and patterns, only names of images count.
    """
    found: list[Path] = []
    for argument in arguments:
        # As bytes: a name may be broken text, which must not stop the others.
        lines = [os.fsdecode(name.rstrip(b"\r\n")) for name in sys.stdin.buffer] if argument == "-" else [argument]
        found += [path for text in lines if text for path in _named(text)]
    return list(dict.fromkeys(found))


def _named(argument: str) -> Iterator[Path]:
    # Path.expanduser refuses names such as ~$photo.png, and Path.exists those that are too long or in a closed folder.
    path = Path(os.path.expanduser(argument))  # noqa: PTH111
    if os.path.isdir(path):  # noqa: PTH112
        yield from _inside(path)
    elif os.path.exists(path) or not glob.has_magic(argument):  # noqa: PTH110
        yield path
    else:
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207  it may be absolute
        for match in matches:
            if match.is_dir():
                yield from _inside(match)
            elif match.suffix.lower() in SUFFIXES:
                yield match
        if not matches:
            yield path


def _inside(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and below, sorted; and folders that are not read, so that they are reported.

    These are links to folders, which may lead back, and folders that cannot be opened.
    """
    closed: list[Path] = []
    for base, folders, names in os.walk(folder, onerror=lambda error: closed.append(Path(error.filename))):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        closed.extend(path for name in folders if (path := Path(base, name)).is_symlink())
        images = (name for name in sorted(names) if not name.startswith("."))
        yield from (Path(base, name) for name in images if Path(name).suffix.lower() in SUFFIXES)
    yield from closed


def predictions(
    model: Model, paths: Sequence[Path], top: int, read: Callable[[], Any] | None = None
) -> Iterator[Prediction]:
    """Yield a prediction for each file, in their order; ``read`` is called whenever a file was read."""
    for start in range(0, len(paths), BATCH):
        part, images, errors = paths[start : start + BATCH], [], {}
        for path in part:
            try:
                images.append(stored_image(path, model.shape))
            except (DataError, OSError) as error:
                errors[path] = str(error)
            if read is not None:
                read()
        rows = iter(model.predict_proba(images))
        for path in part:
            name = os.fsencode(path).decode(errors="backslashreplace")  # a name may be broken text
            if path in errors:
                yield Prediction(name, error=errors[path])
            else:
                row = next(rows)
                best = np.argsort(-row, kind="stable")[:top]
                yield Prediction(name, tuple((model.classes[number], float(row[number])) for number in best))


def shown(prediction: Prediction, classes: Sequence[str]) -> str:
    """Return a line with the classes, their probabilities and the path, in columns."""
    width = max(cell_len(line(name)) for name in classes)
    cells = [(line(name), probability) for name, probability in prediction.top]
    columns = [f"{name}{' ' * (width - cell_len(name))}  {100 * value:5.1f} %" for name, value in cells]
    return "  ".join([*columns, line(prediction.path)])


def as_csv(done: Sequence[Prediction]) -> str:
    """Return a row for each file: path, class, probability, more classes if asked for, and the error if there is one.

    What a spreadsheet would take for a formula gets ``./`` before a path and a quote before a class.
    """
    count = max((len(each.top) for each in done), default=0) or 1
    ends = ["", *(f"_{number}" for number in range(2, count + 1))]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", *(name + end for end in ends for name in ("class", "probability")), "error"])
    for each in done:
        cells = [cell for name, value in each.top for cell in (_harmless(name, "'"), f"{value:.6f}")]
        cells += [""] * (2 * count - len(cells))
        writer.writerow([_harmless(each.path, "./"), *cells, _harmless(each.error, "./")])
    return text.getvalue()


def _harmless(text: str, prefix: str) -> str:
    return prefix + text if is_formula(text) else text


def as_json(done: Sequence[Prediction]) -> str:
    """Return a list with an object for each file."""
    rows: list[dict[str, Any]] = []
    for each in done:
        if each.error:
            rows.append({"path": each.path, "error": each.error})
            continue
        top = [{"class": name, "probability": round(value, 6)} for name, value in each.top]
        rows.append({"path": each.path, **top[0], "top": top})
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


FORMATS = {".csv": as_csv, ".json": as_json}
SIGNS = {".csv": "path,class,probability", ".json": '[\n {\n  "path": '}
"""How the files of this command begin."""
