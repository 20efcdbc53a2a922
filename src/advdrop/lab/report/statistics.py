"""What a few runs can say: means, gaps to the paper, paired comparisons, and what could not be seen.

Intervals are of 95 %. Imports scipy when something is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.95
POWER = 0.8


class Summary(NamedTuple):
    """Mean and standard deviation (None for a single run) of n runs."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Of at least one value.

        >>> Summary.of([1.0, 2.0, 3.0])
        Summary(mean=2.0, std=1.0, n=3)
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        """For example ``0.99 ± 0.07``."""
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


class Difference(NamedTuple):
    """A difference of means and half the width of its interval.

    The width is None where it cannot be known: a single run, or runs that differ by the same to the last digit. A few
    errors counted on 10,000 images do so by chance, and that is no reason to be certain.
    """

    mean: float
    margin: float | None
    runs: int = 1

    @property
    def many(self) -> str:
        """How often it was seen, where there is no interval."""
        return "in a single run" if self.runs == 1 else f"in each of {self.runs} runs"

    @property
    def seen(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.margin is not None and abs(self.mean) > self.margin

    def words(self, than: str) -> str:
        """The difference in words.

        >>> Difference(0.12, 0.05).words("the paper")
        'higher than the paper by 0.12 ± 0.05'
        >>> Difference(-0.02, 0.05).words("the paper")
        'lower than the paper by 0.02 ± 0.05, which may be chance'
        >>> Difference(0.3, None).words("Π model")
        'higher than Π model by 0.30 in a single run'
        >>> Difference(-0.05, None, 2).words("Π model")
        'lower than Π model by 0.05 in each of 2 runs'
        """
        if abs(self.mean) < 0.005:
            text = f"equal to {than} to two digits"
        else:
            text = f"{'higher' if self.mean > 0 else 'lower'} than {than} by {abs(self.mean):.2f}"
        if self.margin is None:
            return f"{text} {self.many}"
        interval = f"{text} ± {self.margin:.2f}" if abs(self.mean) >= 0.005 else f"{text} (± {self.margin:.2f})"
        return interval if self.seen else f"{interval}, which may be chance"


def gap(ours: Summary, mean: float, std: float | None, repeats: int) -> Difference:
    """Ours minus a reported mean, with Welch's interval.

    Args:
        ours: our runs.
        mean: the reported mean.
        std: the reported standard deviation; where none is given the reported mean is taken for exact.
        repeats: the runs behind it.
    """
    difference = ours.mean - mean
    if ours.std is None:
        return Difference(difference, None)
    parts = [(ours.std**2 / ours.n, ours.n - 1)]
    if std is not None and repeats > 1:
        parts.append((std**2 / repeats, repeats - 1))
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Difference(difference, None, ours.n)
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return Difference(difference, _t(freedom) * math.sqrt(variance), ours.n)


@dataclass(frozen=True)
class Paired:
    """Two methods on the same seeds.

    Args:
        n: the seeds that both have.
        difference: the mean of one minus the other, with the interval of the paired t-test.
        t_p: its p; None where it cannot be had: fewer than two seeds, or no spread.
        wilcoxon_p: of Wilcoxon's signed-rank test, exact for few seeds, with ties as well.
        effect: Cohen's d of the differences: their mean by their standard deviation.
        detectable: the smallest difference that so many seeds would show with a probability of 80 %.
    """

    n: int
    difference: Difference
    t_p: float | None
    wilcoxon_p: float | None
    effect: float | None
    detectable: float | None


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Paired | None:
    """Compare two methods seed by seed; None if they share none.

    Args:
        one: seed to error.
        other: likewise.
    """
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    differences = [round(one[seed] - other[seed], 9) for seed in seeds]  # 0.4 - 0.3 is 0.3 - 0.2
    summary = Summary.of(differences)
    if summary.std is None:
        return Paired(1, Difference(summary.mean, None), None, None, None, None)
    error = summary.std / math.sqrt(summary.n)
    if error == 0:
        return Paired(summary.n, Difference(summary.mean, None, summary.n), None, None, None, None)
    difference = Difference(summary.mean, _t(summary.n - 1) * error, summary.n)
    from scipy import stats

    return Paired(
        summary.n,
        difference,
        float(2 * stats.t.sf(abs(summary.mean) / error, summary.n - 1)),
        _signed_rank(differences),
        summary.mean / summary.std,
        detectable(summary.std, summary.n),
    )


def _signed_rank(differences: Sequence[float]) -> float:
    """Wilcoxon's p; zeros do not count. Up to twelve seeds over all signs that the differences might have had."""
    from scipy import stats

    signed = [value for value in differences if value != 0]
    if len(signed) == 1:
        return 1.0  # either sign is as far out
    few = len(signed) <= 12
    return float(stats.wilcoxon(signed, method=stats.PermutationMethod(n_resamples=2**13) if few else "auto").pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of several p-values; those that are None do not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    order = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(order):
        highest = max(highest, min(1.0, value * (len(order) - rank)))
        corrected[place] = highest
    return corrected


def detectable(std: float, n: int, power: float = POWER) -> float:
    """The smallest difference that a paired t-test of 5 % with n seeds shows with this probability.

    Args:
        std: of the differences.
        n: seeds; at least 2.
        power: the probability.
    """
    return _shift(n - 1, power) * std / math.sqrt(n)


@cache
def _shift(freedom: int, power: float) -> float:
    """The shift in standard errors that is shown with this probability."""
    from scipy import optimize

    enough = 1.0
    while t_power(enough, freedom) < power:
        enough *= 2
    return float(optimize.brentq(lambda shift: t_power(shift, freedom) - power, 0.0, enough))


def t_power(shift: float, freedom: int) -> float:
    """The probability that a two-sided t-test of 5 % shows a shift of so many standard errors.

    P(|Z + shift| > t·s), Z normal and s² = χ²/freedom, integrated over s; scipy's noncentral t is not a number for some
    shifts.
    """
    from scipy import integrate

    limit = _t(freedom) / math.sqrt(freedom)
    constant = (1 - freedom / 2) * math.log(2) - math.lgamma(freedom / 2)

    def above(z: float) -> float:
        return math.erfc(z / math.sqrt(2)) / 2

    def density(s: float) -> float:  # of χ, times the probability that Z goes beyond either limit
        chi = math.exp((freedom - 1) * math.log(s) + constant - s * s / 2)
        return chi * (above(limit * s - shift) + above(limit * s + shift))

    return float(integrate.quad(density, 0.0, math.sqrt(freedom) + 10.0, limit=200)[0])


def at_cost(
    updates: Sequence[float | None], errors: Sequence[float | None], each: float, budget: float
) -> float | None:
    """The last error that was measured before the training had cost this much; None if none was.

    Args:
        updates: at which the errors were measured.
        errors: None where none was.
        each: the cost of an update.
        budget: in the same unit.
    """
    pairs = zip(updates, errors, strict=True)
    seen = [error for update, error in pairs if update is not None and error is not None and update * each <= budget]
    return seen[-1] if seen else None


def _t(freedom: float) -> float:
    from scipy import stats

    return float(stats.t.ppf((1 + LEVEL) / 2, freedom))
