"""Every objective, for the tests of what all of them promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from advdrop import (
    AT,
    AUTHORS,
    EMA,
    VAT,
    AdversarialDropout,
    CatGAN,
    CrossEntropy,
    DeepSupervision,
    EntropyMinimization,
    Exhaustive,
    FakeClass,
    FraternalDropout,
    Gamma,
    Iterated,
    MeanTeacher,
    MutualExclusivity,
    PiModel,
    Probe,
    Ramp,
    RandomFlips,
    RDrop,
    SAdD,
    TemporalEnsembling,
    TransformationStability,
    VAdD,
    qe,
)
from advdrop.objectives import Objective
from small import CLASSES, FEATURES, HIDDEN


class Tutor(nn.Module):
    """A teacher of another architecture, always the same, for inputs of any precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, FEATURES * CLASSES).sin().view(FEATURES, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """The same weights each time, and the generator of the test is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(inputs, outputs)


def deep_supervision() -> Objective:
    return CrossEntropy() + DeepSupervision((AdversarialDropout,), nn.ModuleList([linear(HIDDEN, CLASSES)]))


TABLE: dict[str, Callable[[], Objective]] = {
    "cross_entropy": CrossEntropy,
    "sadd": SAdD,
    "sadd independent": lambda: SAdD(noise="independent"),
    "vadd": VAdD,
    "vadd shared": lambda: VAdD(noise="shared"),
    "vadd iterated": lambda: VAdD(search=Iterated(steps=3)),
    "vadd probe": lambda: VAdD(search=Probe()),
    "vadd random": lambda: VAdD(search=RandomFlips()),
    "vadd exhaustive": lambda: VAdD(search=Exhaustive(), delta=0.1),
    "pi": PiModel,
    "temporal": lambda: TemporalEnsembling(examples=16, classes=CLASSES),
    "at": AT,
    "at shared": lambda: AT(noise="shared"),
    "vat": VAT,
    "vat shared": lambda: VAT(noise="shared"),
    "stability": TransformationStability,
    "exclusivity": MutualExclusivity,
    "entropy": EntropyMinimization,
    "gamma": lambda: Gamma(CLASSES),
    "deep supervision": deep_supervision,
    "catgan": lambda: CatGAN(linear(4, FEATURES), latent=4),
    "fake class": lambda: FakeClass(linear(4, FEATURES), latent=4),
    "formula 6": lambda: CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(),
    "formula 7": lambda: CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(divergence=qe) + 2.0 * VAT(),
    "authors": lambda: AUTHORS.complete(CrossEntropy() + AUTHORS.vadd()),
    "r-drop": lambda: RDrop(alpha=2.0),
    "fraternal": FraternalDropout,
    "mean teacher": MeanTeacher,
    "vadd teacher": lambda: VAdD(target=Tutor()),
    "vadd ema": lambda: VAdD(target=EMA()),
    "at module": lambda: AT(at="1"),
    "vat module": lambda: VAT(at="1"),
    "vat module shared": lambda: VAT(at="1", noise="shared"),
}

every = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE)
