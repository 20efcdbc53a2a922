"""The sources of masks: sampled ones are remembered, given ones go to the layers that they are for."""

import pytest
import torch

from advdrop import AdversarialDropout
from advdrop.step.mask_sources import GivenMasks, SampledMasks


def test_sampled_masks_are_scaled_and_remembered():
    layer, source = AdversarialDropout(p=0.25), SampledMasks(torch.Generator().manual_seed(0))
    scaled = [source(layer, torch.ones(4, 50)) for _ in range(2)]
    assert source.layers == [layer, layer]
    assert not torch.equal(*source.masks)
    for mask, given in zip(source.masks, scaled, strict=True):
        assert set(mask.unique().tolist()) == {0.0, 1.0}
        torch.testing.assert_close(given, mask / 0.75)


def test_nothing_is_dropped_in_evaluation_mode():
    source = SampledMasks(torch.Generator())
    assert source(AdversarialDropout(p=0.5).eval(), torch.ones(4, 50)).eq(1).all()


def test_given_masks_go_to_their_layers_in_order():
    one, other = AdversarialDropout(), AdversarialDropout()
    masks = GivenMasks((one, other, one), tuple(torch.full((1, 1), float(i)) for i in range(3)))
    assert [masks(layer, torch.zeros(1, 1)).item() for layer in (one, other, one)] == [0.0, 1.0, 2.0]
    masks.finish()
    with pytest.raises(ValueError, match="same order"):
        masks(one, torch.zeros(1, 1))
    masks.rewind()
    assert masks(one, torch.zeros(1, 1)).item() == 0.0
    with pytest.raises(ValueError, match="same order"):
        masks.finish()
    with pytest.raises(ValueError, match="same order"):
        GivenMasks((one, other), (torch.zeros(1, 1),) * 2)(other, torch.zeros(1, 1))
