import math

import numpy as np
import pytest
import torch
from torch.nested import nested_tensor

from advdrop.masks import mask_shape, sample_mask, scale_mask


@pytest.mark.parametrize(
    ("shape", "granularity", "expected"),
    [
        ((8, 16), "unit", (8, 16)),
        ((8, 16, 4, 4), "unit", (8, 16, 4, 4)),
        ((8, 16), "channel", (8, 16)),
        ((8, 16, 5), "channel", (8, 16, 1)),
        ((8, 16, 4, 4), "channel", (8, 16, 1, 1)),
        (torch.Size((2, 3, 4, 5, 6)), "channel", (2, 3, 1, 1, 1)),
        ((8, 16), "feature", (8, 16)),
        ((8, 20, 16), "feature", (8, 1, 16)),
        ((8, 4, 5, 16), "feature", (8, 1, 1, 16)),
    ],
)
def test_mask_shape(shape, granularity, expected):
    assert mask_shape(shape, granularity) == expected


@pytest.mark.parametrize(
    ("shape", "granularity", "message"),
    [
        ((8,), "unit", r"two dimensions, got shape \(8,\)"),
        ((), "channel", r"two dimensions, got shape \(\)"),
        ((8, 2), "row", r"granularity must be one of 'unit', 'channel', 'feature', got 'row'"),
    ],
)
def test_mask_shape_errors(shape, granularity, message):
    with pytest.raises(ValueError, match=message):
        mask_shape(shape, granularity)


@pytest.mark.parametrize("granularity", ["unit", "channel", "feature"])
def test_p_is_the_probability_of_a_drop(granularity, generator):
    for p in (0.05, 0.3, 0.5, 0.9):
        mask = sample_mask((100, 200, 2, 20), p, generator, granularity)
        assert set(mask.unique().tolist()) == {0.0, 1.0}
        five_sigma = 5 * math.sqrt(p * (1 - p) / mask.numel())
        assert mask.mean().item() == pytest.approx(1 - p, abs=five_sigma)


def test_units_are_dropped_independently(generator):
    mask = sample_mask((20_000, 8), 0.5, generator)
    correlation = np.corrcoef(mask.numpy().T) - np.eye(8)
    assert np.abs(correlation).max() < 5 / math.sqrt(20_000)


def test_nothing_or_everything_is_dropped(generator):
    for like in ((2, 3), torch.zeros(2, 3)):
        for p, value in ((0.0, 1.0), (0, 1.0), (1.0, 0.0), (1, 0.0)):
            assert sample_mask(like, p, generator).tolist() == [[value] * 3] * 2


def test_dtype_and_device_follow_the_activation(generator):
    for granularity, shape in (("unit", (2, 3, 4, 4)), ("channel", (2, 3, 1, 1)), ("feature", (2, 1, 1, 4))):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            for p in (0.0, 0.5):
                h = torch.zeros(2, 3, 4, 4, dtype=dtype, requires_grad=True)
                mask = sample_mask(h, p, generator, granularity)
                assert (mask.dtype, mask.shape, mask.requires_grad) == (dtype, shape, False)
        assert sample_mask(torch.zeros(2, 3, 4, 4, device="meta"), 0.5, None, granularity).device.type == "meta"


def test_a_shape_will_do(generator):
    for shape in ((2, 3), [2, 3], torch.Size((2, 3))):
        mask = sample_mask(shape, 0.5, generator)
        assert (mask.shape, mask.dtype) == ((2, 3), torch.float32)


def test_the_mask_lies_in_memory_as_the_activation_does(generator):
    h = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert sample_mask(h, 0.5, generator).stride() == h.stride()
    assert sample_mask(h.contiguous(), 0.5, generator).stride() == h.contiguous().stride()


def test_a_channel_is_dropped_as_a_whole(generator):
    h = torch.ones(50, 8, 3, 3)
    mask = sample_mask(h, 0.5, generator, "channel")
    assert mask.shape == (50, 8, 1, 1)
    assert set((h * mask).mean((2, 3)).unique().tolist()) == {0.0, 1.0}


def test_the_generator_decides_and_the_global_one_is_left_alone():
    before = torch.get_rng_state()
    masks = [sample_mask((4, 50), 0.5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_the_global_one_decides():
    with torch.random.fork_rng():
        masks = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            masks.append(sample_mask((4, 50), 0.5))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize(
    ("like", "p", "error", "message"),
    [
        ((2, 3), 1.5, ValueError, r"p must be in \[0, 1\], got 1\.5"),
        ((2, 3), "half", TypeError, r"p must be a number.*'half' \(str\)"),
        (torch.zeros(2, 3).long(), 0.5, TypeError, r"like must be floating point, got torch\.int64"),
        ((3,), 0.5, ValueError, r"two dimensions, got shape \(3,\)"),
        (torch.eye(3).to_sparse(), 0.5, TypeError, "a mask needs a dense activation, got a sparse tensor"),
        (nested_tensor([torch.ones(2, 3)], layout=torch.jagged), 0.5, TypeError, "got a nested tensor; put the Adv"),
    ],
)
def test_sample_errors(like, p, error, message):
    with pytest.raises(error, match=message):
        sample_mask(like, p)


def scaled_by_hand(mask, p, scale):
    mask = mask.double().numpy()
    if scale == "none":
        return mask
    if scale == "inverted":
        return mask / (1 - p)
    rows = mask.reshape(len(mask), -1)
    factor = [rows.shape[1] / row.sum() if row.any() else 0.0 for row in rows]
    return (rows * np.array(factor)[:, None]).reshape(mask.shape)


@pytest.mark.parametrize("scale", ["inverted", "renormalized", "none"])
def test_each_scale_against_numpy(scale, generator):
    for shape in ((6, 10), (3, 4, 2, 2), (3, 4, 1, 1)):
        mask = sample_mask(shape, 0.5, generator).double()
        before = mask.clone()
        for p in (0.0, 0.2, 0.5):
            np.testing.assert_allclose(scale_mask(mask, p, scale), scaled_by_hand(mask, p, scale), rtol=1e-6)
        assert torch.equal(mask, before)


def test_an_example_that_lost_all_its_units_stays_zero():
    mask = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    assert scale_mask(mask, 0.5, "renormalized").tolist() == [[0.0] * 4, [2.0, 0.0, 0.0, 2.0]]
    assert scale_mask(torch.zeros(1, 4), 1.0, "inverted").tolist() == [[0.0] * 4]


def test_inverted_is_what_ordinary_dropout_does(generator):
    mask = sample_mask((4, 8), 0.3, generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = torch.nn.functional.dropout(torch.ones(4, 8), 0.3)
    assert scale_mask(mask, 0.3).max() == dropped.max()


@pytest.mark.parametrize(
    ("dtype", "kept", "units"),
    [
        (torch.bfloat16, 1024, 2048),
        (torch.bfloat16, 1030, 2048),
        (torch.bfloat16, 3, 2048),
        (torch.float16, 70_000, 70_000),
    ],
)
def test_renormalized_counts_beyond_what_half_precision_can(dtype, kept, units):
    mask = torch.zeros(2, units, dtype=dtype)
    mask[:, :kept] = 1
    scaled = scale_mask(mask, 0.5, "renormalized")
    assert scaled.dtype == dtype
    assert scaled[:, :kept].unique().tolist() == [torch.tensor(units / kept).to(dtype).item()]
    assert scaled[:, kept:].abs().sum() == 0


def test_renormalized_is_as_precise_as_the_mask():
    scaled = scale_mask(torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64), 0.5, "renormalized")
    assert scaled[0, 0].item() == 4 / 3


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="scale must be one of 'inverted', 'renormalized', 'none', got 'double'"):
        scale_mask(torch.ones(1, 2), 0.5, "double")


def test_scaling_with_an_impossible_p_is_refused():
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\], got 1\.5"):
        scale_mask(torch.ones(1, 2), 1.5)
