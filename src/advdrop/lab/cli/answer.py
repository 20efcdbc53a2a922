"""From finished runs to the answer of ``advdrop.lab.report.answer``: predictions, counts and small pictures."""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from advdrop.lab.choices import DATASETS
from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.terms import Terms
from advdrop.lab.data.batches import LabelSplit
from advdrop.lab.data.examples import DataSet
from advdrop.lab.engine.evaluate import outputs
from advdrop.lab.engine.finished import load_data, refuse_other_data
from advdrop.lab.engine.jobs import Cell
from advdrop.lab.engine.model import load as load_model
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.files import write_text
from advdrop.lab.records.record import record_of
from advdrop.lab.report.answer import BASELINE, FILE, MOST_CLASSES, MOST_EXAMPLES, Answer, Changed, other_differences
from advdrop.lab.report.statistics import paired_images
from advdrop.presets import PRESETS

SUFFIX = re.compile(r"-baseline(-\d+)?$")
"""The end of the name of a run that learns from the labels alone, for the comparison with another run."""
LARGEST = 96
"""Pixels of the longer side of a small picture."""
Pair = tuple[RunDirectory, RunDirectory]
"""Two finished runs of one seed: the baseline and the method."""


def is_own(dataset: str) -> bool:
    """Return True if the data are the user's own, and not those of a data set that has a name."""
    return dataset not in DATASETS


def uses_unlabeled(config: RunConfig) -> bool:
    """Return True if batches have unlabeled images, and the objective has a term for them."""
    terms = config.objective.terms.chosen().values()
    semi_supervised = config.objective.entropy > 0 or any(term.semi_supervised for term in terms)
    return semi_supervised and config.training.unlabeled > 0


def is_fair(one: RunConfig, other: RunConfig) -> bool:
    """Return True if only the other run uses unlabeled images, and its method is all that differs."""
    return not uses_unlabeled(one) and uses_unlabeled(other) and not other_differences(one, other)


def unlabeled_images(split: LabelSplit) -> int:
    """Return the number of images that are used without their labels."""
    return int((~torch.isin(split.unlabeled, split.labeled)).sum())


def answer_of(pairs: Sequence[Pair], data: DataSet, progress: bool = True) -> Answer | None:
    """Return what the unlabeled images changed, or None if there are none. Costs one evaluation of each run.

    Pairs that differ in more than the use of unlabeled images are left out.
    """
    pairs = [pair for pair in pairs if is_fair(*(run.config for run in pair))]
    if not pairs or not (unlabeled := unlabeled_images(pairs[0][0].split)):
        return None
    with tqdm(total=2 * len(pairs), desc="predictions", leave=False, disable=None if progress else True) as bar:
        found = []
        for pair in pairs:
            found.append([predicted(run, data) for run in pair])
            bar.update(2)
    before, now = (torch.stack([pair[side] for pair in found]) for side in (0, 1))  # (S, n)
    y, (first, method) = data.test.y, (run.config for run in pairs[0])
    points = paired_images((before != y).tolist(), (now != y).tolist())
    right, wrong = (
        ((now[0] == y) & (before[0] != y)).nonzero()[:, 0],
        ((now[0] != y) & (before[0] == y)).nonzero()[:, 0],
    )
    shown = torch.cat([right[: MOST_EXAMPLES // 2], wrong[: MOST_EXAMPLES // 2]]).tolist()
    names = [name[:300] for name in data.classes]
    confusion = []
    if len(names) <= MOST_CLASSES:
        counts = torch.bincount((y * len(names) + now).flatten(), minlength=len(names) ** 2)
        confusion = counts.view(len(names), -1).tolist()
    changed = [
        Changed(picture=picture, truth=names[y[i]], before=names[before[0, i]], now=names[now[0, i]])
        for i in shown
        if (picture := thumbnail(data.test.x[i]))
    ]
    return Answer(
        method=method.method,
        baseline=first.method,
        labeled=len(pairs[0][0].split.labeled),
        unlabeled=unlabeled,
        test_images=len(y),
        seeds=len(pairs),
        error_percent=100.0 * float((now != y).double().mean()),
        baseline_error_percent=100.0 * float((before != y).double().mean()),
        difference=points.mean,
        margin=points.margin,
        classes=tuple(names if confusion else ()),
        confusion=confusion,
        right_now=len(right),
        wrong_now=len(wrong),
        changed=tuple(changed),
        records=tuple(record_of(run).digest for pair in pairs for run in pair),
    )


def why_unanswered(run: RunDirectory) -> str:
    """Return why there is no second run that tells whether the unlabeled images helped; empty if there is one."""
    if run.config.engine.devices * run.config.engine.nodes > 1:
        return "it has several devices"
    used = uses_unlabeled(run.config) and unlabeled_images(run.split)
    return "" if used else "it used no unlabeled examples"


def answer_of_run(run: RunDirectory, data: DataSet | None = None, progress: bool = True) -> Answer | None:
    """Return whether the unlabeled images helped in a finished run, and write the answer to its directory.

    A second run, ``RUN-baseline``, learns from the labels alone, with the same settings and the same seed. It is
    trained here, resumed, or read if it is finished. The cost is that training: less than that of the run.
    """
    if why_unanswered(run):
        return None
    config, many = run.config, unlabeled_images(run.split)
    if data is None:
        data = load_data(config, download=False)
    refuse_other_data(run, data)
    cell = baseline_of(run)
    if progress and not cell.finished:
        longest = duration(run.result["seconds"])
        print(
            f"do the {many:,} unlabeled examples help? Training again with the labels alone, which takes less than "
            f"{longest} (--no-baseline leaves it out) ...",
            file=sys.stderr,
            flush=True,
        )
    cell.run(data, progress=progress)
    answer = answer_of([(RunDirectory.open(cell.path), run)], data, progress)
    if answer:
        write_text(run.path / FILE, answer.model_dump_json(indent=1) + "\n")
    return answer


def whole_run(run: RunDirectory) -> RunDirectory:
    """Return the finished run whose baseline this is, or else the run itself. The name alone does not tell."""
    whole = RunDirectory(run.path.with_name(re.sub(SUFFIX, "", run.path.name)))
    if whole.path != run.path and whole.seal and whole.finished and baseline_of(whole).path == run.path:
        return whole
    return run


def baseline_of(run: RunDirectory) -> Cell:
    """Return the baseline of a run: the one that is there, or else one with a name that is free.

    The passes that update running statistics are those of the preset, because a method may do that by itself.
    """
    config = run.config
    updating = tuple(sorted(PRESETS[config.preset].updating))
    alone = config.objective.model_copy(update={"terms": Terms(), "entropy": 0.0, "updating": updating})
    config = config.model_copy(update={"method": BASELINE, "objective": alone})
    for number in count(1):
        path = run.path.with_name(f"{run.path.name}-baseline{f'-{number}' if number > 1 else ''}")
        if not path.exists() or _is_run_of(path, config, run.split.dataset):
            break
    return Cell(path.name, config, path)


def _is_run_of(path: Path, config: RunConfig, dataset: str) -> bool:
    """Return True if a folder is a run of this configuration on data with this checksum."""
    try:
        there = RunDirectory.open(path)
        return not there.config.differences(config) and there.split.dataset == dataset
    except ValueError:  # a folder of something else, or a damaged run
        return False


def predicted(run: RunDirectory, data: DataSet) -> Tensor:
    """Return the class that a finished run predicts for each test image of its data."""
    refuse_other_data(run, data)
    model = load_model(run.path)
    return outputs(model.network, data.test.x, model.preprocess).argmax(1)


def thumbnail(x: Tensor) -> str | None:
    """Return an image ``(C, H, W)`` of bytes as the address of a small PNG; None if it is no gray or color image."""
    if x.dtype != torch.uint8 or x.dim() != 3 or x.shape[0] not in (1, 3) or not x.numel():
        return None
    picture = Image.fromarray(x[0].numpy() if len(x) == 1 else x.permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    picture.save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
