"""Weights, learning rates and β1 as pure functions of progress, the share of the training that is done, in [0, 1].

The paper counts epochs; here a ramp over the first 80 of 300 epochs is ``over=80 / 300``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from advdrop import checks

Schedule = Callable[[float], float]
"""progress -> value."""


def ramp_up(progress: float, over: float) -> float:
    """Return the Gaussian ramp-up exp(−5(1 − T)²), where T goes from 0 to 1 while progress goes from 0 to ``over``.

    >>> [round(ramp_up(t, over=0.3), 4) for t in (0.0, 0.15, 0.3, 1.0)]
    [0.0067, 0.2865, 1.0, 1.0]
    """
    progress, over = checks.fraction("progress", progress), checks.fraction("over", over)
    t = 1.0 if progress >= over else progress / over
    return math.exp(-5.0 * (1.0 - t) ** 2)


def ramp_down(progress: float, over: float) -> float:
    """Return the Gaussian ramp-down exp(−12.5 T²), where T goes from 0 to 1 while progress goes from 1 − ``over`` to 1.

    This is exp(−(0.5·e)²/50) in the code of temporal ensembling, with e = 50·T epochs.

    >>> [round(ramp_down(t, over=0.5), 4) for t in (0.0, 0.5, 0.75, 1.0)]
    [1.0, 1.0, 0.0439, 0.0]
    """
    progress, over = checks.fraction("progress", progress), checks.fraction("over", over)
    t = 0.0 if progress <= 1.0 - over else (progress - (1.0 - over)) / over
    return math.exp(-12.5 * t**2)


def learning_rate(progress: float, maximum: float, up: float, down: float) -> float:
    """Return the learning rate: ``maximum`` times both ramps.

    >>> learning_rate(0.5, maximum=0.003, up=80 / 300, down=50 / 300)
    0.003
    """
    return maximum * ramp_up(progress, up) * ramp_down(progress, down)


def adam_beta1(progress: float, down: float, start: float = 0.9, end: float = 0.5) -> float:
    """Return Adam's β1: r·start + (1 − r)·end, where r is the ramp-down.

    >>> adam_beta1(0.0, down=50 / 300), round(adam_beta1(1.0, down=50 / 300), 3)
    (0.9, 0.5)
    """
    r = ramp_down(progress, down)
    return r * start + (1.0 - r) * end


def fade(progress: float) -> float:
    """Return a weight that falls from 1 to 0 in a straight line.

    >>> fade(0.25)
    0.75
    """
    return 1.0 - progress


@dataclass
class Factor:
    """A factor of a weight whose value is changed in the course of a training, such as the trust in unlabeled data.

    >>> factor = Factor(0.25)
    >>> factor(0.1), factor(0.9)
    (0.25, 0.25)
    """

    value: float = 1.0

    def __call__(self, progress: float) -> float:
        """Return the value; it does not depend on the progress."""
        del progress
        return self.value


@dataclass(frozen=True)
class Ramp:
    """A schedule λ(t) that grows to ``maximum`` while progress goes from 0 to ``over``, see :func:`ramp_up`.

    Multiply an objective by it: ``CrossEntropy() + Ramp(30.0, over=0.3) * VAdD(divergence=qe)``.

    >>> Ramp(30.0, over=0.3)(1.0)
    30.0
    """

    maximum: float = 1.0
    over: float = 0.3

    def __post_init__(self) -> None:
        checks.fraction("over", self.over)
        if self.maximum != 0.0:
            checks.positive("maximum", self.maximum)

    def __call__(self, progress: float) -> float:
        """Return the weight at this progress."""
        return self.maximum * ramp_up(progress, self.over)
