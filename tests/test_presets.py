"""The two bundles hold what the text and the released code do."""

import pytest

from advdrop import AUTHORS, PAPER, CrossEntropy, kl, qe, reverse_kl
from advdrop.presets import PRESETS
from small import quiet, run


@pytest.mark.parametrize(
    ("preset", "ties", "scale", "search_divergence", "terms"),
    [
        (PAPER, "exact", "inverted", None, ["cross_entropy", "vadd_kl"]),
        (AUTHORS, "dropped", "renormalized", reverse_kl, ["cross_entropy", "vadd_kl", "entropy_minimization"]),
    ],
    ids=["paper", "authors"],
)
def test_choices(preset, ties, scale, search_divergence, terms):
    assert PRESETS[preset.name] is preset
    assert preset.layer(p=0.0, delta=0.05).scale == scale
    vadd = preset.vadd(kl, delta=0.1)
    assert (vadd.search.order, vadd.search.ties) == ("largest", ties)
    assert vadd.search_divergence is search_divergence
    assert vadd.delta == 0.1
    assert preset.vadd(qe).search_divergence is None
    assert preset.sadd().search.ties == ties
    loss = run(quiet(0.5), preset.complete(CrossEntropy() + preset.vadd()), updating=preset.updating)
    assert list(loss.terms) == terms
    assert preset.updating == {"labeled", "clean", "second", "adversarial"}
