from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advdrop.lab.data import DataError
from advdrop.lab.data.batches import ROWS, LabelSplit, split_labels

TEN = torch.arange(3000) % 10
SEEDS = st.integers(0, 1000)


@st.composite
def problems(draw):
    """y with some -1 and every class at least 12 times, labels, seed, validation."""
    classes = draw(st.integers(1, 5))
    sizes = [draw(st.integers(12, 20)) for _ in range(classes)]
    y = [c for c, size in enumerate(sizes) for _ in range(size)] + [-1] * draw(st.integers(0, 9))
    y = torch.tensor(draw(st.permutations(y)))
    validation = draw(st.sampled_from([0, *range(classes, 5 * classes)]))
    return y, draw(st.integers(classes, 6 * classes)), draw(SEEDS), validation


def positions(*parts):
    return [set(part.tolist()) for part in parts]


def per_class(y, rows):
    return np.bincount(y[rows].numpy(), minlength=int(y.max()) + 1)


def same(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ROWS)


@given(problems(), st.booleans())
def test_every_row_is_where_it_belongs(problem, overlap):
    y, labels, seed, validation = problem
    split = split_labels(y, labels, seed, validation=validation, overlap=overlap)
    labeled, unlabeled, held = positions(split.labeled, split.unlabeled, split.validation)
    assert (len(split.labeled), len(split.validation)) == (len(labeled), len(held)) == (labels, validation)
    for rows in (split.labeled, split.validation):
        counts = per_class(y, rows)  # bincount refuses a -1
        assert counts.max() - counts.min() <= 1
    assert unlabeled == set(range(len(y))) - held - (set() if overlap else labeled)
    assert not held & labeled
    assert set((y == -1).nonzero().flatten().tolist()) <= unlabeled
    assert all(
        (rows.diff() > 0).all() and rows.dtype == torch.int64 for rows in (getattr(split, name) for name in ROWS)
    )


@given(problems(), st.data())
def test_fewer_labels_are_a_subset_and_leave_the_validation_rows_alone(problem, data):
    y, labels, seed, validation = problem
    fewer = data.draw(st.integers(int(y.max()) + 1, labels))
    more, less = (split_labels(y, n, seed, validation=validation) for n in (labels, fewer))
    every = split_labels(y, "all", seed, validation=validation)
    small, large, all_of_them = positions(less.labeled, more.labeled, every.labeled)
    assert small <= large <= all_of_them
    assert torch.equal(less.validation, more.validation)
    assert torch.equal(less.validation, every.validation)


def test_a_hundred_labels_are_among_the_thousand():
    small, large = positions(*(split_labels(TEN, n, seed=3).labeled for n in (100, 1000)))
    assert small < large


def test_a_split_is_a_function_of_the_labels_and_the_seed_alone():
    first = split_labels(TEN, 100, 0, validation=50)
    torch.rand(7)
    assert same(split_labels(TEN.clone(), 100, 0, validation=50, classes=10), first)
    drawn = [tuple(split_labels(TEN, 100, seed).labeled.tolist()) for seed in range(5)]
    assert len(set(drawn)) == 5


def test_the_draw_is_even_over_the_rows_of_a_class_and_over_the_classes():
    y = torch.arange(40) % 2
    times = np.bincount(np.concatenate([split_labels(y, 11, seed).labeled for seed in range(2000)]), minlength=40)
    expected = 2000 * 11 / 40  # the odd label goes to either class
    assert abs(times - expected).max() < 6 * np.sqrt(expected)
    odd = [per_class(y, split_labels(y, 11, seed).labeled)[0] for seed in range(200)]
    assert 60 < odd.count(6) < 140


@pytest.mark.parametrize("validation", [0, 20])
@pytest.mark.parametrize("overlap", [True, False])
def test_all_labels_without_unlabeled_images_are_one_stream(validation, overlap):
    split = split_labels(TEN, "all", 0, validation=validation, overlap=overlap)
    assert (len(split.labeled), len(split.unlabeled)) == (3000 - validation, 0)
    assert not set.intersection(*positions(split.labeled, split.validation))


def test_all_labels_of_some_images_leave_the_other_images_unlabeled():
    y = torch.where(torch.arange(3000) < 1000, TEN, -1)
    alone, together = (split_labels(y, "all", 0, validation=10, overlap=overlap) for overlap in (False, True))
    assert alone.unlabeled.tolist() == list(range(1000, 3000))
    assert len(alone.labeled) == 990
    assert len(together.unlabeled) == 2990


@pytest.mark.parametrize(
    ("y", "labels", "options", "message"),
    [
        ([0, 0, 0, 1], 4, {}, "labels=4 would take 2 labeled examples of class 1, which has 1; ask for fewer"),
        ([0, 0, 1, 1], 4, {"validation": 2}, "labels=4 and validation=2 would take 3 labeled examples of class 0"),
        (
            [0, 0, 1, 1],
            "all",
            {"validation": 4},
            "labels=all and validation=4 would take 3 labeled examples of class 0",
        ),
        ([0, 0, 2], "all", {}, "of class 1, which has 0; give each class an example with a label"),
        ([0, 1], "all", {"classes": 3}, "of class 2, which has 0"),
        ([0, 1], "all", {"classes": 3, "names": ["cat", "dog", "fox"]}, "of class fox, which has 0"),
        ([0, 1, 2], 2, {}, "labels=2 cannot be shared by 3 classes: each needs one at least"),
        ([0, 1, 2], 0, {}, "labels=0 cannot be shared"),
        ([0, 1, 2], -3, {}, "labels=-3 cannot be shared"),
        ([0, 0, 1, 1], 2, {"validation": 1}, "validation=1 cannot be shared by 2 classes"),
        ([0, 0, 1, 1], 2, {"validation": -2}, "validation=-2 cannot be shared"),
        ([-1, -1], 2, {}, "no training example has a label"),
        ([-1, -1], 2, {"classes": 2}, "would take 1 labeled examples of class 0, which has 0"),
    ],
)
def test_what_cannot_be_split(y, labels, options, message):
    with pytest.raises(DataError, match=message):
        split_labels(torch.tensor(y), labels, 0, **options)


def test_what_is_saved_is_loaded(tmp_path):
    first, second = split_labels(TEN, 100, 0, validation=10), split_labels(TEN, "all", 0)
    for number, split in enumerate((first, replace(second, dataset="0f3c"))):
        path = tmp_path / f"{number}.npz"
        split.save(path)
        loaded = LabelSplit.load(path)
        assert same(loaded, split)
        assert loaded.dataset == split.dataset
        rows = [getattr(loaded, name) for name in ("labeled", "unlabeled", "validation")]
        assert all(part.dtype == torch.int64 and (part.diff() > 0).all() for part in rows)


def test_a_pickle_is_not_loaded(tmp_path):
    np.savez(tmp_path / "s.npz", labeled=np.array([{}], dtype=object), unlabeled=[], validation=[])
    with pytest.raises(ValueError, match="allow_pickle=False"):
        LabelSplit.load(tmp_path / "s.npz")
