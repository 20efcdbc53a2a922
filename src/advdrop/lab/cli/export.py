"""``advdrop export``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from advdrop.lab.cli.options import Export
from advdrop.lab.cli.predict import images_of
from advdrop.lab.data.inputs import stored_image
from advdrop.lab.deploy.export import FORMATS, TOLERANCE, exported, largest_difference, random_examples, refuse_missing
from advdrop.lab.engine.model import Model, load
from advdrop.lab.files import written

MOST = 200
"""The number of given images that a file is checked on, at most."""


def run_export(options: Export) -> int:
    """Write a model to one file, which gets its name only if it computes what the run computes."""
    ending = FORMATS[options.format].ending
    out = options.out or Path(f"{options.run.absolute().name}{ending}")
    if out.suffix != ending:
        raise ValueError(f"--format {options.format} writes files that end in {ending}, got {out}")
    if out.exists() and (out.is_dir() or not options.force):
        raise ValueError(f"{out} exists; {'choose another --out' if out.is_dir() else 'replace it with --force'}")
    refuse_missing(options.format)
    model = load(options.run)
    examples = random_examples(model)
    checked = f"{len(examples)} random examples"
    if options.images:
        given = given_images(model, options.images)
        examples = torch.cat([examples, given])
        checked += f" and {len(given)} given images"
    with Console(stderr=True).status("exporting ..."):
        content, run = exported(model, options.format)
        difference = largest_difference(run, model, examples)
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"the exported model differs from the run: by {difference:.1g} in a probability, on {checked}; "
            f"nothing is written"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with written(out) as file:
        file.write(content)
    size = f"{len(content) / 2**20:,.1f} MB"
    print(f"written to {out} ({size}): checked on {checked}, the largest difference is {difference:.1g}")
    return 0


def given_images(model: Model, images: list[str]) -> torch.Tensor:
    """Return the images to check a file on, as stored examples."""
    if not (paths := images_of(images)[:MOST]):
        raise ValueError(f"no images in {', '.join(images)}; give image files, folders of them or patterns")
    return torch.from_numpy(np.stack([stored_image(path, model.shape) for path in paths]))
