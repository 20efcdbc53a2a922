"""The coin toss: its law, and that it is a toss for every entry."""

import math

import numpy as np
import pytest
import torch

from advdrop.masks import bernoulli as module
from advdrop.masks.bernoulli import bernoulli

KEEPS = (0.5, 0.25, 0.8, 0.999, 1e-3)
ALL_KEEPS = (0.0, *KEEPS, 1.0)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def sigma(keep, entries):
    return math.sqrt(keep * (1 - keep) / entries)


def chi_square(counts, expected):
    """In standard deviations from the mean, for many cells."""
    cells = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - cells) / math.sqrt(2 * cells)


@pytest.mark.parametrize("keep", KEEPS)
def test_every_place_has_the_mean_keep(keep, generator):
    # Rows of 192: every place in a word, in a byte, and in three neighboring words of either kind.
    means = bernoulli((20_000, 192), keep, generator).mean(0, dtype=torch.float64)
    assert (means - keep).abs().max() < 5 * sigma(keep, 20_000)


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_all_patterns_of_eight_neighbors_are_as_frequent_as_they_should_be(keep, generator):
    whole = bernoulli((800_064,), keep, generator).long().numpy()
    ones = np.array([pattern.bit_count() for pattern in range(256)])
    for start in (0, 3, 60):
        mask = whole[start : start + 800_000].reshape(-1, 8)
        counts = np.bincount(mask @ (1 << np.arange(8)), minlength=256)
        assert abs(chi_square(counts, len(mask) * keep**ones * (1 - keep) ** (8 - ones))) < 5


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_entries_at_a_distance_know_nothing_of_each_other(keep, generator):
    mask = bernoulli((640_000,), keep, generator).double() - keep
    for distance in (1, 2, 7, 8, 9, 31, 32, 63, 64, 65, 128):
        correlation = (mask[:-distance] * mask[distance:]).mean().item() / (keep * (1 - keep))
        assert abs(correlation) < 5 / math.sqrt(len(mask) - distance), distance


@pytest.mark.parametrize("keep", [0.5, 0.3])
def test_two_calls_know_nothing_of_each_other(keep, generator):
    first, second = (bernoulli((200_000,), keep, generator) for _ in range(2))
    assert not torch.equal(first, second)
    both = (first * second).mean(dtype=torch.float64).item()
    assert both == pytest.approx(keep**2, abs=5 * sigma(keep**2, 200_000))


SHAPES = [(1,), (1, 1), (63,), (65,), (3, 5, 7), (2, 3, 4, 5), (127, 1), (0, 4), (4, 0), ()]


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.25])
def test_any_shape(keep, generator):
    for shape in SHAPES:
        mask = bernoulli(shape, keep, generator)
        assert mask.shape == shape
        assert mask.is_contiguous()
        assert set(mask.flatten().tolist()) <= {0.0, 1.0}
        assert bernoulli(torch.Size(shape), keep, generator).shape == shape
        assert bernoulli(list(shape), keep, generator).shape == shape


@pytest.mark.parametrize("entries", [1, 65])
@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_the_last_entries_are_tossed_like_the_first(entries, keep, generator):
    last = torch.stack([bernoulli((entries,), keep, generator)[-1] for _ in range(1000)])
    assert last.mean().item() == pytest.approx(keep, abs=5 * sigma(keep, 1000))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_entries_are_zero_or_the_value_to_the_bit(dtype, generator):
    for keep in ALL_KEEPS:
        for value in (1.0, 2.0, 1 / 0.3):
            mask = bernoulli((200, 201), keep, generator, value=value, dtype=dtype)
            assert mask.dtype == dtype
            expected = torch.tensor(value, dtype=dtype).item()
            seen = {0.0} if keep == 0.0 else {expected} if keep == 1.0 else {0.0, expected}
            assert set(mask.unique().tolist()) == seen


def test_the_dtype_is_torchs_default_if_not_given():
    assert {bernoulli((3,), keep).dtype for keep in ALL_KEEPS} == {torch.float32}
    torch.set_default_dtype(torch.float64)
    try:
        assert {bernoulli((3,), keep).dtype for keep in ALL_KEEPS} == {torch.float64}
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_the_tosses_do_not_depend_on_dtype_value_and_shape(keep):
    masks = [
        bernoulli(shape, keep, torch.Generator().manual_seed(4), dtype=dtype, value=value).flatten() != 0
        for dtype in DTYPES
        for value, shape in ((1.0, (30, 70)), (2.0, (2100,)))
    ]
    assert all(torch.equal(mask, masks[0]) for mask in masks)


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_a_generator_decides_alone(keep):
    before = torch.get_rng_state()
    first, again, other = (bernoulli((9999,), keep, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_without_a_generator_the_global_one_decides(keep):
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(bernoulli((9999,), keep))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert not torch.equal(bernoulli((9999,), keep), masks[2])
    torch.manual_seed(1)
    assert torch.equal(bernoulli((9999,), keep, torch.Generator().manual_seed(1)), masks[0])


def test_what_is_certain_draws_nothing(generator):
    before, own = torch.get_rng_state(), generator.get_state()
    for keep in (0.0, 1.0):
        bernoulli((5,), keep)
        bernoulli((5,), keep, generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(generator.get_state(), own)


def test_tensors_without_values_have_masks_without_values():
    for keep in ALL_KEEPS:
        for value in (1.0, 2.0):
            mask = bernoulli((3, 5), keep, value=value, dtype=torch.bfloat16, device=torch.device("meta"))
            assert (mask.shape, mask.dtype, mask.device.type) == ((3, 5), torch.bfloat16, "meta")


def test_the_device_is_torchs_default_if_not_given():
    with torch.device("meta"):
        assert {bernoulli((3,), keep).device.type for keep in ALL_KEEPS} == {"meta"}
        assert bernoulli((3,), 0.5, device=torch.device("cpu")).device.type == "cpu"


# Other devices use torch's own toss: the CPU is made to look like one of them.
@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_on_other_devices_torch_tosses(keep):
    class Elsewhere:
        type = "elsewhere"

    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda shape, dtype, device: empty(shape, dtype=dtype))
        mask = bernoulli((20, 30), keep, torch.Generator().manual_seed(3), value=3.0, device=Elsewhere())
    expected = torch.empty(20, 30).bernoulli_(keep, generator=torch.Generator().manual_seed(3))
    assert torch.equal(mask, 3.0 * expected)


@pytest.mark.parametrize(
    ("keep", "below"),
    [
        (0.25, 2**30),
        (2.0**-20, 2**12),
        (1 - 2.0**-20, 2**32 - 2**12),
        (2.0**-32, 1),
        (1 - 2.0**-32, 2**32 - 1),
        (2.0**-40, 0),
        (1 - 2.0**-40, 2**32 - 1),
        (0.1, round(0.1 * 2**32)),
    ],
)
def test_a_word_counts_if_it_is_one_of_the_first_share_of_all_words(keep, below, monkeypatch):
    words = torch.tensor(
        [w - 2**31 for w in (0, 1, below - 1, below, below + 1, 2**32 - 2, 2**32 - 1) if 0 <= w < 2**32],
        dtype=torch.int32,
    )
    words = words[: len(words) // 2 * 2]
    monkeypatch.setattr(module, "_words", lambda *_: words.view(torch.int64))
    mask = bernoulli((len(words),), keep)
    assert mask.tolist() == [float(w + 2**31 < below) for w in words.tolist()]


@pytest.mark.parametrize("keep", [2.0**-20, 1 - 2.0**-20])
def test_rare_entries_are_as_rare_as_they_should_be(keep, generator):
    rare = min(keep, 1 - keep)
    found = sum(int((bernoulli((2**22,), keep, generator) != round(keep)).sum()) for _ in range(4))
    assert abs(found - 2**24 * rare) < 5 * math.sqrt(2**24 * rare)


def test_all_64_bits_of_a_word_are_random(generator):
    words = module._words(64 * 4000, 1, generator)
    assert words.shape == (4000,)
    ones = torch.stack([(words >> bit & 1).double().mean() for bit in range(64)])
    assert (ones - 0.5).abs().max() < 5 * 0.5 / math.sqrt(4000)


def test_no_more_words_are_drawn_than_needed(generator):
    for entries, size, words in ((1, 1, 1), (64, 1, 1), (65, 1, 2), (1, 32, 1), (3, 32, 2)):
        assert module._words(entries, size, generator).shape == (words,)
