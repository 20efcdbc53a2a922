"""How much the unlabeled rows help."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from advdrop.sklearn.labels import Array


class Gain(NamedTuple):
    """How much better the predictions of held-out labels are with the unlabeled rows than without.

    Args:
        mean: the difference of the scores (accuracy or R²).
        standard_error: of the mean, over the held-out labels.
    """

    mean: float
    standard_error: float

    @classmethod
    def of(cls, differences: Array) -> Self:
        """Return the gain from the difference of the scores of each held-out label, ``(L,)``."""
        return cls(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))))

    def answer(self, score: str) -> str:
        """Return the gain in one sentence; two standard errors decide.

        >>> Gain(0.05, 0.02).answer("accuracy")
        'The unlabeled rows helped: accuracy on held-out labels +0.050 ± 0.040 (two standard errors).'
        """
        found = f"{score} on held-out labels {self.mean:+.3f} ± {2 * self.standard_error:.3f} (two standard errors)"
        if abs(self.mean) <= 2 * self.standard_error:
            return f"The unlabeled rows made no clear difference: {found}."
        return f"The unlabeled rows {'helped' if self.mean > 0 else 'did harm'}: {found}."
