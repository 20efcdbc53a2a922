"""Means, gaps to the paper, paired comparisons, orders, and the smallest difference that so few runs can show.

Intervals are 95 % intervals. scipy is imported when something is computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean, stdev
from typing import Literal, NamedTuple

LEVEL = 0.05
"""A difference counts as shown if its p-value is below this."""
POWER = 0.8


class Summary(NamedTuple):
    """Mean and standard deviation (None for a single run) of n runs."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarize at least one value.

        >>> Summary.of([1.0, 2.0, 3.0])
        Summary(mean=2.0, std=1.0, n=3)
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def text(self, digits: int = 2) -> str:
        """Return for example ``0.99 ± 0.07``."""
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f" ± {self.std:.{digits}f}")


class Difference(NamedTuple):
    """A difference of means and half the width of its interval.

    The width is None where it is unknown: for a single run, and for runs that all differ by exactly the same. With a
    few errors counted on 10,000 images, equal differences happen by chance.
    """

    mean: float
    margin: float | None
    runs: int = 1

    @property
    def many(self) -> str:
        """How often the difference was measured, where there is no interval."""
        return "in a single run" if self.runs == 1 else f"in each of {self.runs} runs"

    @property
    def seen(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.margin is not None and abs(self.mean) > self.margin

    def words(self, than: str, chance: bool | None = None) -> str:
        """Return the difference in words. ``chance``: whether it may be chance, if the interval alone does not decide.

        >>> Difference(-0.02, 0.05).words("the paper")
        'lower than the paper by 0.02 ± 0.05, which may be chance'
        """
        chance = not self.seen if chance is None else chance
        equal = abs(self.mean) < 0.005
        side = "higher" if self.mean > 0 else "lower"
        text = f"equal to {than} to two digits" if equal else f"{side} than {than} by {abs(self.mean):.2f}"
        if self.margin is None:
            return f"{text} {self.many}"
        text += f" (± {self.margin:.2f})" if equal else f" ± {self.margin:.2f}"
        return f"{text}, which may be chance" if chance else text


@dataclass(frozen=True)
class Paired:
    """Two methods on the n seeds that both have. A test is None for one seed, and for equal differences."""

    n: int
    difference: Difference  # with the interval of the paired t-test
    t_p: float | None = None
    wilcoxon_p: float | None = None  # of the signed-rank test, exact for few seeds, also with ties
    effect: float | None = None  # Cohen's d: mean of the differences divided by their standard deviation
    detectable: float | None = None  # the smallest difference that is shown with a probability of 80 %


def gap(ours: Summary, mean: float, std: float | None, repeats: int) -> Difference:
    """Return our mean minus a reported one, with Welch's interval.

    A reported mean without a spread is taken as exact. Runs of ours that are all equal are so by chance, and have no
    interval.
    """
    if not ours.std:
        return Difference(ours.mean - mean, None, ours.n)
    parts = [(ours.std**2 / ours.n, ours.n - 1)]
    if std is not None and repeats > 1:
        parts.append((std**2 / repeats, repeats - 1))
    return Difference(ours.mean - mean, _welch(parts), ours.n)


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Paired | None:
    """Compare the errors of two methods seed by seed; None if they share no seed."""
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    differences = [round(one[seed] - other[seed], 9) for seed in seeds]  # 0.4 - 0.3 must equal 0.3 - 0.2
    mean, std, n = Summary.of(differences)
    if not std:
        return Paired(n, Difference(mean, None, n))
    from scipy import stats

    margin, p = _t(n - 1) * std / math.sqrt(n), float(stats.ttest_1samp(differences, 0.0).pvalue)
    return Paired(n, Difference(mean, margin, n), p, _signed_rank(differences), mean / std, detectable(std, n))


def paired_images(without: Sequence[Sequence[bool]], given: Sequence[Sequence[bool]]) -> Difference:
    """Return by how many percentage points fewer test images are wrong with something than without it.

    Args:
        without: whether each test image is wrong, ``(S, n)`` for S seeds and n images.
        given: the same images and seeds with what is judged.

    d_i is the mean over seeds of (wrong without) - (wrong with) for image i, and D_s the mean over images for seed s.
    The variance of their mean is Σ d_i² / n² for other test images, plus var(D_s) / S for other draws of the labels and
    other initial weights. Both parts contain the noise of a single prediction, so the interval is rather too wide. The
    factor is that of Student's t with the degrees of freedom of Welch and Satterthwaite, and 1 / (S·n) is added for
    continuity. For one seed this is McNemar's test with continuity correction, and the interval knows nothing about
    other seeds.

    >>> found = paired_images([[True] * 12 + [False] * 88], [[False] * 12 + [True] * 2 + [False] * 86])
    >>> round(found.mean, 1), round(found.margin, 1)
    (10.0, 8.4)
    """
    import numpy as np

    gained = np.asarray(without, float) - np.asarray(given, float)
    seeds, images = gained.shape
    parts = [(float((gained.mean(0) ** 2).sum()) / images**2, max(images - 1, 1))]
    if seeds > 1:
        parts.append((float(gained.mean(1).var(ddof=1)) / seeds, seeds - 1))
    margin = _welch(parts) + 1 / (seeds * images)
    return Difference(100.0 * float(gained.mean()), 100.0 * margin, seeds)


def _welch(parts: Sequence[tuple[float, int]]) -> float:
    """Return half the width of Welch's interval, for parts of a variance and their degrees of freedom."""
    variance = sum(part for part, _ in parts)
    return _t(variance**2 / sum(part**2 / free for part, free in parts)) * math.sqrt(variance) if variance else 0.0


def _signed_rank(differences: Sequence[float]) -> float:
    """Return Wilcoxon's p without zeros. Up to twelve seeds, all signs that the differences could have are counted."""
    from scipy import stats

    signed = [value for value in differences if value != 0]
    if len(signed) == 1:
        return 1.0
    every = stats.PermutationMethod(n_resamples=2**13)
    return float(stats.wilcoxon(signed, method=every if len(signed) <= 12 else "auto").pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values after Holm's correction; None values do not count.

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


def shared_seeds(rows: Collection[Mapping[int, float]]) -> set[int]:
    """Return the seeds that all rows have; all seeds if the rows share none.

    One seed can be harder than another, so means are compared over these seeds alone.

    >>> shared_seeds([{0: 2.5, 1: 2.0}, {0: 2.4}])
    {0}
    """
    seeds = [set(errors) for errors in rows]
    return set.intersection(*seeds) or set.union(*seeds)


class Agreement(NamedTuple):
    """How far two orders agree: pairs that have the same order in both, all pairs, Kendall's τ and its p-value."""

    same: int
    pairs: int
    tau: float
    p: float


def agreement(one: Sequence[float], other: Sequence[float]) -> Agreement | None:
    """Compare the orders of two sequences of numbers; None for fewer than two numbers, or if all of them are equal.

    >>> agreement([1.0, 2.0, 3.0], [5.0, 9.0, 7.0])
    Agreement(same=2, pairs=3, tau=0.333, p=1.0)
    """
    if len(set(one)) < 2 or len(set(other)) < 2:
        return None
    from scipy import stats

    pairs = list(combinations(range(len(one)), 2))
    same = sum((one[left] - one[right]) * (other[left] - other[right]) > 0 for left, right in pairs)
    tau, p = stats.kendalltau(one, other)
    if len({*one}) < len(one) or len({*other}) < len(other):  # scipy's p-value with ties is for many rows
        p = stats.permutation_test(
            (one,), lambda order: stats.kendalltau(order, other).statistic, permutation_type="pairings", rng=0
        ).pvalue
    return Agreement(same, len(pairs), round(float(tau), 3), round(float(p), 6))


def p_value(value: float | None) -> str:
    """Return a p-value as text.

    >>> p_value(0.0312), p_value(0.00001), p_value(None)
    ('0.031', '< 0.001', '–')
    """
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def p_text(value: float) -> str:
    """Return a p-value for a sentence.

    >>> p_text(0.0312), p_text(0.00001)
    ('p = 0.031', 'p < 0.001')
    """
    return f"p {'' if value < 0.001 else '= '}{p_value(value)}"


def signed(value: float, form: str = ".2f") -> str:
    """Return a number with its sign, which zero does not have.

    >>> signed(-1.5), signed(0.25), signed(-0.001)
    ('-1.50', '+0.25', '0.00')
    """
    text = f"{value:+{form}}"
    return text if float(text) else text[1:]


def judged(found: Paired, p: float | None) -> Literal["lower", "higher", "unknown"]:
    """Return what a comparison shows with this p-value, which may be corrected for several comparisons."""
    if p is None or p >= LEVEL:
        return "unknown"
    return "lower" if found.difference.mean < 0 else "higher"


def numbers(found: Paired, p: float | None, mean: str = ".2f", margin: str = ".2f") -> str:
    """Return a comparison in numbers, with the formats of the mean and of the margin.

    >>> numbers(Paired(3, Difference(-1.5, 0.25, 3)), 0.0312)
    'difference -1.50 ± 0.25, n = 3, p = 0.031'
    """
    difference = found.difference
    text = f"difference {signed(difference.mean, mean)}"
    if difference.margin is None:
        return f"{text} {difference.many}"
    text += f" ± {difference.margin:{margin}}, n = {found.n}"
    return text if p is None else f"{text}, {p_text(p)}"


def detectable(std: float, n: int) -> float:
    """Return the smallest difference that a paired t-test at 5 % with n seeds shows with a probability of 80 %."""
    return _shift(n - 1) * std / math.sqrt(n)


@cache
def _shift(freedom: int) -> float:
    """Return the shift, in standard errors, that is shown with a probability of 80 %; it is at most 16.4."""
    from scipy import optimize

    return float(optimize.brentq(lambda shift: t_power(shift, freedom) - POWER, 0.0, 20.0))


def t_power(shift: float, freedom: int) -> float:
    """Return the probability that a two-sided t-test at 5 % shows a positive shift of this many standard errors."""
    from scipy import stats

    upper, lower = (float(stats.nct.sf(_t(freedom), freedom, side * shift)) for side in (1, -1))
    return upper + (0.0 if math.isnan(lower) else lower)  # scipy has nan for a probability of about 0


def _t(freedom: float) -> float:
    from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / 2, freedom))
