"""How far unlabeled data are trusted: a factor of λ, decided by networks that learn from the labels alone."""

from __future__ import annotations

from torch import Tensor


def skill_of(right: float, shares: Tensor) -> float:
    """Return the share of a guess's errors that a classifier avoids: 0 is no better than a guess, 1 is perfect.

    Args:
        right: its accuracy on labels that it did not learn from, from 0 to 1.
        shares: the shares of the classes in those labels; a guess is drawn from them.

    >>> import torch
    >>> skill_of(0.75, torch.tensor([0.5, 0.5])), skill_of(0.4, torch.tensor([0.5, 0.5]))
    (0.5, 0.0)
    """
    guess = float(shares.square().sum())
    return max(0.0, (right - guess) / (1.0 - guess)) if guess < 1.0 else 0.0


def trust_in(skill: float, error: float) -> float:
    """Return a factor of λ: the square of the skill that is left after one standard error, max(0, skill − error)².

    Few labels prove little. Where the skill may be chance, unlabeled data do not count.

    Args:
        skill: how good a network is on labels that it did not learn from: 0 is no better than a guess, 1 is perfect.
        error: the standard error of the skill.

    >>> trust_in(0.8, 0.3), trust_in(0.2, 0.3)
    (0.25, 0.0)
    """
    return max(0.0, skill - error) ** 2


def skill_error(skill: float, labels: int, classes: int) -> float:
    """Return the standard error of the skill of a classifier, √(a(1 − a)/n) / (1 − 1/C) with a = 1/C + (1 − 1/C)·skill.

    Args:
        skill: the share of the errors of a guess that are avoided.
        labels: n, how many labels it was measured on.
        classes: C.

    >>> round(skill_error(0.0, 20, 2), 3), skill_error(1.0, 20, 2)
    (0.224, 0.0)
    """
    if labels < 1 or classes < 2:
        return 1.0
    guess = 1 / classes
    accuracy = guess + (1 - guess) * skill
    return float((accuracy * (1 - accuracy) / labels) ** 0.5 / (1 - guess))


def collapse(p: Tensor, reference: Tensor) -> str:
    """Return what is wrong with predictions that collapse, or an empty text.

    They collapse if they are nearly uniform, or if nearly all rows are put in one class, and those of a network that
    learns from the labels alone are not.

    Args:
        p: the probabilities of unlabeled rows, ``(N, C)``.
        reference: those of the other network, ``(N, C)``.

    >>> import torch
    >>> collapse(torch.full((4, 2), 0.5), torch.eye(2).repeat(2, 1))
    'the mean of the highest probability is 0.50, for 2 classes'
    """
    classes = p.shape[1]
    certain, before = (float(each.amax(1).mean()) - 1 / classes for each in (p, reference))
    if certain < before / 4:
        return f"the mean of the highest probability is {certain + 1 / classes:.2f}, for {classes} classes"
    found, known = (float(each.argmax(1).bincount().max()) / len(each) for each in (p, reference))
    if found > 0.99 and known < 0.9:
        return f"{100 * found:.0f} % of the rows are put in one class"
    return ""
