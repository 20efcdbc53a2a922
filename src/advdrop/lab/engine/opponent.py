"""The second player of an adversarial game: a generator and its own optimizer, updated after the classifier."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING
from weakref import proxy

import torch
import torch.nn.functional as F
from torch import Tensor

from advdrop.lab.config.terms import Generative
from advdrop.lab.engine.companion import main_network
from advdrop.masks import gradient
from advdrop.objectives import Objective
from advdrop.randomness import derived_generator, derived_seed, seed_noise
from advdrop.step.batch_norm import frozen_statistics
from advdrop.step.step import Step

if TYPE_CHECKING:
    from advdrop.lab.engine.training import Training

SHEET = (4, 8)
"""Rows and columns of a sheet of samples."""
COLORS, SIDE = 64, 32
"""Colors of the sheet and pixels of a side, so that its file, a part of the record, is at most 25 kB."""


class Opponent:
    """The opponents of all terms of an objective. Each minimizes its own value with its own modules alone."""

    def __init__(self, training: Training, objective: Objective) -> None:
        self.training: Training = proxy(training)  # no cycle
        self.step = Step(main_network(training.network), objective, updating=()).to(training.fabric.device)
        chosen = training.config.objective.terms.chosen().values()
        self.options = next(options for options in chosen if isinstance(options, Generative))
        betas = (self.options.generator_beta1, training.config.optimizer.beta2)
        self.adam = torch.optim.Adam(self.step.trained.parameters(), betas=betas)

    def update(self, update: int, share: float) -> dict[str, Tensor]:
        """Do one update at this share of the maximum learning rate, and return the values of the terms."""
        run, parameters = self.training, list(self.step.trained.parameters())
        fabric, turns = run.fabric, run.config.engine.accumulate
        self.adam.param_groups[0]["lr"] = share * self.options.generator_rate
        self.adam.zero_grad()
        terms: dict[str, Tensor] = {}
        for turn in range(turns):
            part = turn * fabric.world_size + fabric.global_rank
            seed_noise(run.batches.device, derived_seed(run.config.seed, "opponent", update, part))
            batch = run.batches.at(update, part, turns * fabric.world_size)
            with fabric.autocast():
                found = self.step(**batch.arguments(), progress=update / run.config.training.updates)
                # Not backward(): the classifier, which the gradient flows through, must get none.
                slopes = gradient(found.loss, tuple(parameters))
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.grad = slope / turns if parameter.grad is None else parameter.grad + slope / turns
            terms = found.terms
        if fabric.world_size > 1:
            for parameter in parameters:
                parameter.grad = fabric.all_reduce(parameter.grad)  # type: ignore[assignment, arg-type]
        self.adam.step()
        return terms

    @torch.no_grad()
    def samples(self) -> Tensor | None:
        """Return generated pictures as bytes, ``(32, C, H, W)``; None if the data are no pictures."""
        from advdrop.lab.models.generator import Generator

        generator = next(module for module in self.step.trained.values() if isinstance(module, Generator))
        if not generator.pixels or len(generator.shape) != 3 or generator.shape[0] not in (1, 3):
            return None
        device = self.training.fabric.device
        draws = derived_generator(self.training.config.seed, "samples", device=device)
        z = torch.empty(SHEET[0] * SHEET[1], self.options.latent, device=device).normal_(generator=draws)
        with frozen_statistics(generator):  # as in training, batch norm uses those of the batch
            pictures = generator.stored(z)
        return pictures.round().to(torch.uint8).cpu()


def sheet(pictures: Tensor) -> bytes:
    """Return a PNG file of pictures ``(N, C, H, W)`` of bytes, in rows of eight. Large pictures are made smaller."""
    from PIL import Image

    if (largest := max(pictures.shape[2:])) > SIDE:
        height, width = (max(1, round(side * SIDE / largest)) for side in pictures.shape[2:])
        pictures = F.adaptive_avg_pool2d(pictures.float(), (height, width)).round().to(torch.uint8)
    count, channels, height, width = pictures.shape
    rows = pictures.reshape(count // SHEET[1], SHEET[1], channels, height, width)
    pixels = rows.permute(0, 3, 1, 4, 2).reshape(-1, SHEET[1] * width, channels).numpy()
    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).quantize(COLORS)
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()
