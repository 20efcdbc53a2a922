"""What can be typed behind ``advdrop``. Imports no torch: help must come at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    CliSubCommand,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from advdrop.lab.choices import Labels, Precision, PresetChoice, PresetName

Folder = Annotated[Path, AfterValidator(Path.expanduser)]


def _some_jobs(jobs: Any) -> Any:
    if jobs != "auto" and not (str(jobs).isdecimal() and int(jobs) > 0):
        raise ValueError("takes a number of processes, at least 1, or 'auto'")
    return jobs


Jobs = Annotated[int | Literal["auto"], BeforeValidator(_some_jobs)]


class Command(BaseModel):
    """What every command takes."""

    model_config = ConfigDict(extra="forbid")

    debug: bool = Field(False, description="show the traceback of an error")


class Recipe(Command):
    """What is trained, and on what."""

    dataset: str = Field("mnist5k", description="a name (advdrop data list), an .npz file or a folder of images")
    data_dir: Folder | None = Field(None, description="where the files are; else $ADVDROP_DATA, else a cache folder")
    labels: Labels = Field(100, description="labels that are kept, as many of each class; 'all' is supervised")
    preset: PresetChoice = Field(
        "auto",
        description="paper: as printed; authors: as released; robust: for data that nobody tuned for; auto: paper for "
        "the paper's data sets, robust for all others",
    )
    updates: int | None = Field(None, description="length of the training; schedules shrink with it")
    set: list[str] = Field(
        [], description="any other choice as KEY=VALUE, such as network.delta=0.01; --dry-run shows all"
    )
    devices: int | None = Field(None, description="processes on this machine, each with a part of the batch")
    nodes: int | None = Field(None, description="machines")
    precision: Precision | None = Field(
        None, description="of the passes: 32 (default), bf16, fp16, or auto: bf16 if it is faster on this machine"
    )
    force: bool = Field(False, description="replace what an earlier run of that name left")
    quiet: bool = Field(False, description="no progress")


class Train(Recipe):
    """Train one network.

    With nothing else said, vadd-kl on the 5,000 digits that come with it, with 100 labels.

    Methods: dropout, at, vat, pi, temporal, sajjadi, sadd, vadd-kl, vadd-qe, no-flips,
    entropy, and sums of them, such as vadd-kl+vat.

    Examples:
      advdrop train
      advdrop train --method pi --labels 200 --seed 1
      advdrop train first --dataset mnist --labels 1000 --data-dir ~/data --updates 12000
      advdrop train --dataset my.npz --labels all --set network.delta=0.1
      advdrop train --resume runs/first
    """

    name: CliPositionalArg[str | None] = Field(None, description="name of the run, a folder in runs/")
    method: str = Field("vadd-kl", description="what is added to the cross-entropy")
    seed: int = Field(0, description="of the split, the initialization, the order and the noise")
    out: Folder | None = Field(None, description="the run directory, instead of runs/NAME")
    resume: Folder | None = Field(None, description="go on with this run directory; nothing else is needed")
    dry_run: bool = Field(False, description="show the whole configuration and how long it will take")


class Compare(Recipe):
    """Train several methods on the same splits and put them in one table.

    Runs that are there already are kept: finished ones are read, others gone on with.

    Examples:
      advdrop compare
      advdrop compare --methods dropout,pi,vat,vadd-kl,vadd-qe --labels 100 --seeds 3
      advdrop compare --jobs 1
    """

    methods: list[str] = Field(["dropout", "pi", "vadd-kl"], description="methods, with commas between them")
    seeds: int = Field(1, description="runs of each method, with seeds 0, 1, ...; one seed is one split for all")
    out: Folder | None = Field(None, description="folder of the run directories, instead of runs/compare-...")
    jobs: Jobs = Field(
        "auto", description="runs at a time, in processes that share the cores; auto: what cores and memory allow"
    )
    dry_run: bool = Field(False, description="show the runs and how long they will take")


class Reproduce(Command):
    """Run a table or a figure of the paper and set it beside what the paper says.

    Cells are runs of their own: finished ones are read, others gone on with, failed ones told at the end. Each one
    that is finished becomes a record, and the table is made of the records.

    Examples:
      advdrop reproduce                                      (lists the suites)
      advdrop reproduce table1 --dry-run
      advdrop reproduce table1 --only dropout,pi,vadd-kl --seeds 3 --data-dir ~/data
      advdrop reproduce table2 --protocol paper --scheduler tcp://10.0.0.1:8786
      advdrop reproduce figure2                              (and figure3, theory; no download)
    """

    suite: CliPositionalArg[str | None] = Field(None, description="a table or a figure, or a YAML file of your own")
    protocol: str = Field("short", description="short: what two CPU cores can do; paper: the paper's length")
    preset: PresetName = Field("paper", description="the choices the paper leaves open: its text, or its released code")
    only: list[str] = Field([], description="rows, with commas between them")
    columns: list[str] = Field([], description="columns, with commas between them")
    seeds: int | None = Field(None, description="runs of each cell, with seeds 0, 1, ..., if not the protocol's number")
    data_dir: Folder | None = Field(None, description="where the files are; else $ADVDROP_DATA, else a cache folder")
    results: Folder = Field(Path("results"), description="the folder of the records")
    out: Folder = Field(Path("runs/reproduce"), description="folder of the run directories")
    missing: bool = Field(False, description="leave out the cells that have a record")
    retry: bool = Field(False, description="try cells again that failed before")
    jobs: Jobs = Field(
        "auto", description="runs at a time, in processes that share the cores; auto: what cores and memory allow"
    )
    scheduler: str | None = Field(
        None, description="address of a Dask scheduler whose workers run the cells and share these folders"
    )
    dry_run: bool = Field(False, description="show the cells and how long they will take")
    quiet: bool = Field(False, description="no progress")


class Report(Command):
    """Put results in one page: tables beside the paper's, statistics, curves, and the commands to run them again.

    Examples:
      advdrop report results -o report.html
      advdrop report runs/demo
      advdrop report results/table1 --format latex
    """

    results: CliPositionalArg[list[Folder]] = Field(
        description="records, run directories, folders of them; and the YAML files of suites of your own"
    )
    out: Folder | None = Field(
        None, validation_alias=AliasChoices("o", "out"), description="the file to write (default: report.html)"
    )
    format: Literal["html", "markdown", "csv", "json", "latex"] | None = Field(
        None, description="by the ending of the file if it is not given; all but html are printed without a file"
    )


class Evaluate(Command):
    """Measure a finished run again, from its weights.

    Examples:
      advdrop evaluate runs/mnist5k-100-vadd-kl-0
    """

    run: CliPositionalArg[Folder] = Field(description="a run directory")
    data_dir: Folder | None = Field(None, description="where the data are now, if not where they were")
    dataset: str | None = Field(None, description="where your own data are now, if not where they were")
    json_: bool = Field(False, alias="json", description="print JSON")


class Explain(Command):
    """Show what the mask search does with one test image: masks, Jacobian, flips, class probabilities.

    Examples:
      advdrop explain runs/mnist5k-100-vadd-kl-0 --image 7
      advdrop explain runs/first --image 7 --target label --delta 0.05 -o seven.svg
    """

    run: CliPositionalArg[Folder] = Field(description="the directory of a finished run")
    image: int = Field(0, description="its number among the test images")
    target: Literal["output", "label"] | None = Field(
        None, description="what the output is driven away from: the network's own output (VAdD) or the label (SAdD)"
    )
    delta: float | None = Field(None, description="share of the units that may be flipped, if not that of the run")
    seed: int = Field(0, description="of the sampled mask")
    out: Folder | None = Field(
        None, validation_alias=AliasChoices("o", "out"), description="the file to write (default: explain-IMAGE.svg)"
    )
    data_dir: Folder | None = Field(None, description="where the data are now, if not where they were")
    dataset: str | None = Field(None, description="where your own data are now, if not where they were")


class Audit(Command):
    """How fragile networks are to losing units: the worst ones, and random ones.

    Examples:
      advdrop audit runs/mnist5k-100-vadd-kl-0
      advdrop audit runs/demo/* --images 200 -o audit.svg
    """

    runs: CliPositionalArg[list[Folder]] = Field(description="directories of finished runs, side by side in one table")
    images: int = Field(500, description="test images to look at, the first ones")
    budgets: list[int] = Field([1, 2, 4, 8, 16, 32, 64], description="numbers of lost units, with commas between them")
    draws: int = Field(10, description="random masks for each number")
    out: Folder | None = Field(
        None, validation_alias=AliasChoices("o", "out"), description="the figure to write (default: audit.svg)"
    )
    data_dir: Folder | None = Field(None, description="where the data are now, if not where they were")
    json_: bool = Field(False, alias="json", description="print JSON: everything, example by example")


class DataList(Command):
    """The data sets there are, and whether their files are here."""

    data_dir: Folder | None = Field(None, description="where to look; else $ADVDROP_DATA, else a cache folder")


class DataGet(Command):
    """Download the files of a data set, unless they are here.

    $ADVDROP_MIRROR is tried before the official addresses: MIRROR/DATASET/FILE.
    """

    dataset: CliPositionalArg[str] = Field(description="such as mnist")
    data_dir: Folder | None = Field(None, description="where to; else $ADVDROP_DATA, else a cache folder")


class DataCheck(Command):
    """Read a data set, compare its checksums and say what is in it."""

    dataset: CliPositionalArg[str] = Field(description="a name, an .npz file or a folder")
    data_dir: Folder | None = Field(None, description="where to look; else $ADVDROP_DATA, else a cache folder")


class Data(Command):
    """Look at, download and check data sets."""

    list: CliSubCommand[DataList] = Field(description="the data sets there are")
    get: CliSubCommand[DataGet] = Field(description="download one")
    check: CliSubCommand[DataCheck] = Field(description="read one and say what is in it")


class Show(Command):
    """Show runs: what was run, how it went, what came out.

    Examples:
      advdrop show runs/*
    """

    runs: CliPositionalArg[list[Folder]] = Field(description="run directories, or folders of them")


class Advdrop(BaseSettings):
    """Adversarial dropout for PyTorch (Park, Park, Shin and Moon, AAAI 2018).

    Start with:  advdrop train
    Each command explains itself:  advdrop train --help
    """

    model_config = SettingsConfigDict(
        cli_prog_name="advdrop",
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
        extra="forbid",
    )

    train: CliSubCommand[Train] = Field(description="train one network")
    compare: CliSubCommand[Compare] = Field(description="several methods on the same splits, one table")
    reproduce: CliSubCommand[Reproduce] = Field(description="a table of the paper, beside the paper's numbers")
    report: CliSubCommand[Report] = Field(description="one page of results")
    evaluate: CliSubCommand[Evaluate] = Field(description="measure a finished run again")
    audit: CliSubCommand[Audit] = Field(description="how fragile networks are to losing units")
    explain: CliSubCommand[Explain] = Field(description="what the mask search does with one image")
    show: CliSubCommand[Show] = Field(description="what runs came to")
    data: CliSubCommand[Data] = Field(description="list, get or check data sets")
    version: bool = Field(False, description="print the version")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is typed, and nothing else: no variable of the environment is an option by accident."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)
