"""The options of each command. Imports no torch, so that help is fast."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typer import Argument, Option

from advdrop.lab.choices import (
    AVX2,
    DATASETS,
    MOST_SEEDS,
    ColorChoice,
    ExportFormat,
    Instructions,
    Precision,
    PresetChoice,
    PresetName,
)


def _option(default: Any, about: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    return Option(default, *names, help=about, rich_help_panel=panel, **more)


def _home(path: Path | None) -> Path | None:
    return path.expanduser() if path is not None else None


def _commas(texts: list[str]) -> list[str]:
    return [name for text in texts for name in text.split(",")]


def _limited(instructions: Instructions) -> Instructions:
    if instructions == "avx2":  # before torch is imported, because it reads the variables only once
        os.environ |= AVX2
    return instructions


def _complete_method(incomplete: str) -> list[str]:
    """Complete the last term of a sum, or of a list of methods."""
    from advdrop.lab.config.terms import METHODS

    start = max(incomplete.rfind(mark) for mark in "+,") + 1
    return [incomplete[:start] + name for name in METHODS if name.startswith(incomplete[start:])]


def _complete_dataset(incomplete: str) -> list[str]:
    return [name for name in DATASETS if name.startswith(incomplete)]


def _complete_suite(incomplete: str) -> list[str]:
    from advdrop.lab.suites.suite import suites

    return [name for name in (*suites(), "figure2", "figure3", "theory") if name.startswith(incomplete)]


_what = partial(_option, panel="What is trained")
_names = partial(_what, [], callback=_commas)
_seeds = partial(_what, min=1, max=MOST_SEEDS)
_machine = partial(_option, panel="Machine")
_jobs = partial(_machine, None, "Number of runs at a time.", min=1, max=1000, show_default="as cores and memory allow")
_file = partial(_option, panel="Files", callback=_home)
_data_dir = partial(_file, None, "Folder of the data files.", show_default="$ADVDROP_DATA, else a cache folder")
_moved = partial(_file, None, "Folder of the data files, if they were moved.")
_moved_data = partial(_option, None, "Path of your own data, if they were moved.", panel="Files")
_quiet = partial(_option, False, "Show no progress.", "--quiet")
_dry_run = partial(_option, False, "Train nothing; show what would be trained and how long it would take.", "--dry-run")


@dataclass(kw_only=True)
class Recipe:
    """The options that ``train`` and ``compare`` share."""

    dataset: str | None = _what(
        None,
        "Name (advdrop data list shows them), folder of images, CSV file of path,label, or .npz file.",
        show_default="mnist5k",
        autocompletion=_complete_dataset,
    )
    unlabeled: Path | None = _what(None, "Folder of more images, without labels.", callback=_home, metavar="DIR")
    size: str | None = _what(
        None,
        "Pixels of each side that images are resized to. auto: the size that all have, else their median, at most 64.",
        metavar="<int|auto>",
        show_default="auto",
    )
    color: ColorChoice | None = _what(
        None, "What images are converted to. auto: gray if all of them are gray, else rgb.", show_default="auto"
    )
    labels: str | None = _what(
        None,
        "Number of labels to use, equally many of each class, or 'all'.",
        metavar="<int|all>",
        show_default="100, and all of your own data",
    )
    preset: PresetChoice | None = _what(
        None,
        "Where the settings come from. paper: the text of the paper. authors: the code that its authors released. "
        "robust: our choices for data that nothing was tuned on. auto: paper for the data sets of the paper, robust "
        "for all others.",
        show_default="auto",
    )
    updates: int | None = _what(None, "Number of weight updates. All schedules are scaled to it.")
    config: Path | None = _what(None, "YAML file with any of the settings.", exists=True, dir_okay=False)
    set: list[str] = _what([], "Any setting, such as network.delta=0.01. Can be repeated.", metavar="KEY=VALUE")
    data_dir: Path | None = _data_dir()
    precision: Precision | None = _machine(
        None, "Number format. auto: bf16 if this machine has instructions for it, else 32.", show_default="32"
    )
    quiet: bool = _quiet()
    dry_run: bool = _dry_run()


@dataclass(kw_only=True)
class Train(Recipe):
    """Train one network, and write its configuration, metrics and weights to a folder.

    Methods: dropout, at, vat, pi, temporal, sajjadi, sadd, vadd-kl, vadd-qe, no-flips, entropy, mean-teacher, r-drop,
    fraternal, gamma, ladder, catgan, gan-fm, dsn, and sums of them such as vadd-kl+vat.

    Your own images are a folder with a folder for each class, or a CSV file with the columns path and label. Images in
    the folder unlabeled/ have no label and are used too. The images may have any size and color. Without a folder test/
    every fifth labeled image is for testing.

    Each data set has a recipe with all settings; --dry-run shows them. A --config file overrides the recipe, the other
    options override the file, and --set overrides everything.

    Examples:
      advdrop train
      advdrop train --method pi --labels 200 --seed 1
      advdrop train first --dataset mnist --labels 1000 --data-dir ~/data
      advdrop train --dataset my-images/
      advdrop train --dataset labels.csv --unlabeled more-images/ --size 32 --color gray
      advdrop train --dataset my.npz --set network.delta=0.1
      advdrop train --config my.yaml --dry-run
      advdrop train --resume runs/first
      advdrop train --resume runs/first --updates 2000
      advdrop train second --from runs/first --dataset other-images/
    """

    name: str | None = Argument(
        None, help="Name of the run, a folder in runs/.", show_default="DATASET-LABELS-METHOD-SEED"
    )
    method: str | None = _what(
        None, "Terms that are added to the cross-entropy.", show_default="vadd-qe", autocompletion=_complete_method
    )
    seed: int | None = _what(None, "Seed of everything that is random.", show_default="0")
    baseline: bool | None = _what(
        None,
        "Train again with the labels alone, and say whether the unlabeled images helped.",
        "--baseline/--no-baseline",
        show_default="for your own data",
    )
    devices: int | None = _machine(None, "Number of processes on each machine. They share each batch.")
    nodes: int | None = _machine(None, "Number of machines.")
    force: bool = _option(False, "Replace the run of the same name.", "--force", panel="Files")
    out: Path | None = _file(None, "Run directory, instead of runs/NAME.")
    resume: Path | None = _file(
        None, "Continue the run in this directory, with its configuration. With a larger --updates, extend it."
    )
    from_: Path | None = _file(
        None, "Start with the weights of this finished run, of other data or other classes.", "--from", metavar="RUN"
    )


@dataclass(kw_only=True)
class Compare(Recipe):
    """Train several methods with the same labels and compare them in one table.

    Finished runs are not repeated, and interrupted runs are continued. The method and the seed of a --config file are
    not used.

    Examples:
      advdrop compare
      advdrop compare --methods dropout,pi,vat,vadd-kl --labels 100 --seeds 3
      advdrop compare --jobs 1
    """

    methods: list[str] = _what(
        ["dropout", "pi", "vadd-qe"],
        "Methods, separated by commas.",
        metavar="METHODS",
        callback=_commas,
        autocompletion=_complete_method,
    )
    seeds: int = _seeds(1, "Number of runs of each method, with seeds 0, 1, ...")
    out: Path | None = _file(None, "Folder of the run directories.", show_default="runs/compare-DATASET-LABELS")
    jobs: int | None = _jobs()


@dataclass(kw_only=True)
class Reproduce:
    """Run a table or a figure of the paper and compare it with the paper.

    Without a name, list what can be run. Finished runs in --out are not repeated, and interrupted runs are continued.
    Each finished run becomes a record, a small JSON file. If the folder of the records has one already, the run is
    compared with it; --missing leaves such runs out. The table is made from the records.

    Examples:
      advdrop reproduce
      advdrop reproduce table1 --dry-run
      advdrop reproduce table1 --only dropout,pi,vadd-kl --seeds 3 --data-dir ~/data
      advdrop reproduce table1 --only dropout --columns 1000 --instructions avx2
      advdrop reproduce table2 --protocol paper --scheduler tcp://10.0.0.1:8786
      advdrop reproduce figure2
    """

    suite: str | None = Argument(
        None, help="A table or a figure, or a YAML file of your own.", autocompletion=_complete_suite
    )
    protocol: str = _what(
        "short",
        "Length of the runs. paper: as in the paper. short: for two CPU cores. long (Tables 1 and 2) "
        "and scaled (Tables 2, D.1 and D.2): longer.",
    )
    preset: PresetName = _what("paper", "Which settings to use; see advdrop train --help.")
    only: list[str] = _names("Rows of the table, separated by commas.", metavar="ROWS", show_default="all")
    columns: list[str] = _names("Columns of the table, separated by commas.", metavar="COLUMNS", show_default="all")
    seeds: int | None = _seeds(
        None, "Number of runs of each method, with seeds 0, 1, ...", show_default="that of the protocol"
    )
    missing: bool = _what(False, "Leave out runs that have a record already.", "--missing")
    jobs: int | None = _jobs()
    scheduler: str | None = _machine(
        None, "Address of a Dask scheduler. Its workers run the trainings and must see the same folders."
    )
    instructions: Instructions = _machine(
        "auto",
        "Instructions of the processor. auto: all that it has. avx2: none newer than AVX2, to repeat records of a "
        "processor without AVX-512 to the last digit.",
        callback=_limited,
    )
    data_dir: Path | None = _data_dir()
    results: Path = _file(Path("results"), "Folder of the records.")
    out: Path = _file(Path("runs/reproduce"), "Folder of the run directories.")
    quiet: bool = _quiet()
    dry_run: bool = _dry_run()


@dataclass(kw_only=True)
class Report:
    """Write results to one page: tables with the numbers of the paper, statistics, curves, and commands to repeat them.

    Examples:
      advdrop report results
      advdrop report runs/demo -o demo.html
      advdrop report results/table1 -o table1.tex
    """

    results: list[Path] = Argument(
        ..., help="Records or run directories, folders that contain them, and YAML files of your own suites."
    )
    out: Path = _file(Path("report.html"), "File to write: .html, .md, .csv, .json or .tex.", "--out", "-o")


@dataclass(kw_only=True)
class Evaluate:
    """Measure the test error of a finished run again, from its weights.

    Examples:
      advdrop evaluate runs/mnist5k-100-vadd-qe-0
    """

    run: Path = Argument(..., help="Directory of a finished run.")
    data_dir: Path | None = _moved()
    dataset: str | None = _moved_data()


@dataclass(kw_only=True)
class Explain:
    """Draw what the mask search does with one test image: masks, Jacobian, flips and class probabilities.

    Examples:
      advdrop explain runs/mnist5k-100-vadd-qe-0 --image 7
      advdrop explain runs/first --image 7 -o seven.svg
    """

    run: Path = Argument(..., help="Directory of a finished run.")
    data_dir: Path | None = _moved()
    dataset: str | None = _moved_data()
    image: int = _option(0, "Number of the test image, from 0 on.")
    out: Path | None = _file(None, "Figure to write.", "--out", "-o", show_default="explain-IMAGE.svg")


@dataclass(kw_only=True)
class Audit:
    """Measure how much accuracy networks lose when units fail: the worst units, and random units.

    Examples:
      advdrop audit runs/mnist5k-100-vadd-qe-0
      advdrop audit runs/demo --images 200 -o audit.svg
      advdrop audit runs/first --layers all --faults stuck:1,sign,bit --images 100
    """

    runs: list[Path] = Argument(..., help="Directories of finished runs, or folders of them.")
    images: int = _option(500, "Number of random test images, equally many of each class.", min=1)
    layers: list[str] = _option(
        [],
        "Layers to rank: all, or names of modules separated by commas.",
        metavar="<all|NAMES>",
        callback=_commas,
        show_default="the layer with adversarial dropout",
    )
    faults: list[str] = _option(
        [],
        "With --layers, other faults: stuck:VALUE (units), sign, bit, bit:exponent (weights), separated by commas.",
        metavar="FAULTS",
        callback=_commas,
        show_default="none",
    )
    seed: int = _option(0, "Seed of the images and the random faults.", min=0)
    json: bool = _option(False, "Print JSON.", "--json")
    out: Path = _file(Path("audit.svg"), "Figure to write.", "--out", "-o")
    data_dir: Path | None = _moved()
    dataset: str | None = _moved_data()


@dataclass(kw_only=True)
class Show:
    """Show the configuration, the progress and the result of runs.

    Examples:
      advdrop show runs/*
    """

    runs: list[Path] = Argument(..., help="Run directories, or folders of them.")


@dataclass(kw_only=True)
class Predict:
    """Classify images with a finished run. Its data are not needed, and the run may have been moved.

    Images may have any size and color mode. Each line has the class, its probability and the path. In folders (with
    those inside them) and quoted patterns, only files with names of images count.

    Files that cannot be read do not stop the others: they are listed at the end, and the exit code is 1. If there are
    no images at all, it is 2.

    Examples:
      advdrop predict runs/first cat.jpg dog.png
      advdrop predict runs/first photos/ --out classes.csv
      advdrop predict runs/first "photos/**/*.jpg" --top 3
      find photos -newer last-time | advdrop predict runs/first - --out classes.json
    """

    run: Path = Argument(..., help="Directory of a finished run.")
    images: list[str] = Argument(..., help="Image files, folders, patterns in quotes, or - for paths on stdin.")
    out: Path | None = _file(
        None, "Write all results to this file, .csv or .json, instead of printing them.", "--out", "-o"
    )
    top: int = _option(1, "Number of classes to show for each image.", min=1)


@dataclass(kw_only=True)
class Export:
    """Write a finished run to one file that classifies raw images in other programs.

    Preprocessing is inside. The input is a batch of any number of images: uint8 from 0 to 255, N x C x H x W, of the
    size of the run. The output is the probabilities. The names of the classes are in the metadata.

    onnx: for onnxruntime and many others (pip install 'advdrop[export]'). torch: for torch.export.load, with torch
    alone.

    The file is compared with the run on random examples, and on your images with --images. It is written only if all
    probabilities are equal to 1e-4.

    Examples:
      advdrop export runs/first
      advdrop export runs/first --format torch --out first.pt2
      advdrop export runs/first --images photos/ --out first.onnx --force
    """

    run: Path = Argument(..., help="Directory of a finished run.")
    format: ExportFormat = _option("onnx", "Format of the file.")
    out: Path | None = _file(None, "File to write, .onnx or .pt2.", "--out", "-o", show_default="RUN.onnx or RUN.pt2")
    images: list[str] = _option([], "Image, folder or pattern to check the file on too. Can be repeated.")
    force: bool = _option(False, "Replace a file of that name.", "--force", panel="Files")


@dataclass(kw_only=True)
class Serve:
    """Serve a finished run: a page to drop an image on, and POST /predict for programs.

    It listens on this machine only, unless --host says otherwise. It has no passwords and no encryption: put a proxy
    in front of it to open it to others. Uploads are limited in size, pixels, time and number, and nothing is stored.

    It needs pip install 'advdrop[serve]'.

    Examples:
      advdrop serve runs/first
      advdrop serve runs/first --port 9000
      curl -F image=@cat.jpg http://127.0.0.1:8000/predict
      curl --data-binary @cat.jpg http://127.0.0.1:8000/predict
    """

    run: Path = Argument(..., help="Directory of a finished run.")
    port: int = _option(8000, "Port; 0 for any that is free.", min=0, max=65535)
    host: str = _option("127.0.0.1", "Address to listen on, or the name of this machine.")
    max_mb: float = _option(10.0, "Size of an upload, at most, in MB.", "--max-mb", min=0.001, max=1000.0)


@dataclass(kw_only=True)
class DataList:
    """List the data sets that have a name, and show whether their files are here."""

    data_dir: Path | None = _data_dir()


@dataclass(kw_only=True)
class DataGet:
    """Download the files of a data set that are not here.

    If the environment variable ADVDROP_MIRROR is set, MIRROR/DATASET/FILE is tried first.

    Examples:
      advdrop data get mnist
    """

    dataset: str = Argument(..., help="Name of a data set.")
    data_dir: Path | None = _data_dir()


@dataclass(kw_only=True)
class DataCheck:
    """Read a data set, verify its checksums and show what it contains.

    Examples:
      advdrop data check my-images/
    """

    dataset: str = Argument(..., help="Name, folder of images, CSV file of path,label, or .npz file.")
    data_dir: Path | None = _data_dir()
