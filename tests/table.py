"""Every objective, for the tests of what all of them promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advdrop import (
    AT,
    AUTHORS,
    VAT,
    CrossEntropy,
    EntropyMinimization,
    Exhaustive,
    Iterated,
    MutualExclusivity,
    PiModel,
    Probe,
    Ramp,
    RandomFlips,
    SAdD,
    TemporalEnsembling,
    TransformationStability,
    VAdD,
    qe,
)
from advdrop.objectives import Objective
from small import CLASSES

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
    "formula 6": lambda: CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(),
    "formula 7": lambda: CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(divergence=qe) + 2.0 * VAT(),
    "authors": lambda: AUTHORS.complete(CrossEntropy() + AUTHORS.vadd()),
}

every = pytest.mark.parametrize("make", TABLE.values(), ids=TABLE)
