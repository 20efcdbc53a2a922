import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advdrop.lab.data import Examples
from advdrop.lab.data.batches import Augment, Batches, LabelSplit, Stream, split_labels
from advdrop.lab.data.preprocess import Preprocess, zca_matrix
from advdrop.step.batch import Batch

ROWS = 40
Y = torch.arange(ROWS) % 4
JITTER = Augment(noise=0.05)


def examples():
    """Row i is full of 100 + i, so that a view tells its row."""
    return Examples(torch.arange(100, 100 + ROWS)[:, None].expand(-1, 6).to(torch.uint8), Y)


def batches(labels=12, labeled=6, unlabeled=10, augment=JITTER, seed=0, overlap=True, split=None, views=2):
    split = split or split_labels(Y, labels, 0, overlap=overlap)
    return Batches(examples(), split, labeled, unlabeled, Preprocess("none"), augment, seed, views=views)


def rows_of(view):
    rows = view.mean(1) - 100
    assert (rows - rows.round()).abs().max() < 0.3
    return rows.round().long()


def equal(one, other):
    pairs = [pair for pair in zip(vars(one).values(), vars(other).values(), strict=True) if pair != ((), ())]
    return len(pairs) == 5 and all(torch.equal(a, b) for a, b in pairs)


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 99))
def test_a_stream_is_one_permutation_after_another(length, size, seed):
    rows = torch.arange(length) * 3 + 5
    stream = Stream(rows, size, seed, "s")
    turns = 4 * max(1, length // size)
    drawn = torch.cat([stream.at(update) for update in range(turns)])
    assert len(drawn) == turns * size
    for start in range(0, len(drawn) - length + 1, length):
        assert sorted(drawn[start : start + length].tolist()) == rows.tolist()


@given(st.integers(1, 12), st.integers(1, 30), st.lists(st.integers(0, 60), min_size=1, max_size=12))
def test_an_update_does_not_depend_on_those_asked_for_before(length, size, updates):
    rows = torch.arange(length)
    stream = Stream(rows, size, 0, "s")
    for update in updates:
        found = stream.at(update)
        assert found.shape == (size,)
        assert torch.equal(found, Stream(rows, size, 0, "s").at(update))


def test_permutations_seeds_and_names_differ():
    orders = [
        tuple(Stream(torch.arange(50), 50, seed, name).at(update).tolist())
        for seed, name, update in itertools.product((0, 1), ("labeled", "unlabeled"), (0, 1, 2))
    ]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_batch_has_the_rows_of_its_two_streams(overlap):
    made = batches(overlap=overlap)
    split = made.split
    for update in range(9):
        batch = made.at(update)
        x, u = rows_of(batch.x), rows_of(batch.unlabeled)
        assert torch.equal(x, Stream(split.labeled, 6, 0, "labelled").at(update))
        assert torch.equal(u, Stream(split.unlabeled, 10, 0, "unlabelled").at(update))
        assert torch.equal(batch.y, Y[x])
        assert torch.equal(batch.index, u)
        assert torch.equal(rows_of(batch.second_view), u)
        assert not torch.isclose(batch.unlabeled, batch.second_view).any(1).all()
        assert (batch.x.dtype, batch.unlabeled.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("labels", [12, "all"])
def test_without_augmentation_there_is_one_view(labels):
    batch = batches(labels, augment=Augment()).at(3)
    assert batch.second_view is None
    rows = rows_of(batch.x if labels == "all" else batch.unlabeled)
    assert torch.equal(rows, batch.index)


@pytest.mark.parametrize("options", [{"labels": "all"}, {"unlabeled": 0}])
def test_one_stream_has_two_views_of_the_labeled_rows(options):
    batch = batches(**options).at(1)
    assert batch.unlabeled is None
    assert torch.equal(rows_of(batch.x), batch.index)
    assert torch.equal(rows_of(batch.second_view), batch.index)
    assert torch.equal(batch.y, Y[batch.index])
    assert not torch.equal(batch.x, batch.second_view)


@given(st.integers(0, 20), st.integers(1, 4), st.sampled_from([12, "all"]))
def test_the_parts_of_an_update_are_the_update(update, parts, labels):
    made = batches(labels, labeled=12, unlabeled=24)
    whole = made.at(update)
    split = [made.at(update, part, parts) for part in range(parts)]
    names = ("x", "index") if labels == "all" else ("x", "unlabeled", "index")
    for name in names:
        rows = [getattr(batch, name) for batch in (whole, *split)]
        together, *apart = rows if name == "index" else map(rows_of, rows)
        assert sorted(torch.cat(apart).tolist()) == sorted(together.tolist())
        assert len({len(part) for part in apart}) == 1
    for batch in split:
        assert torch.equal(batch.y, Y[rows_of(batch.x)])
        assert torch.equal(batch.index, rows_of(batch.x if labels == "all" else batch.unlabeled))


def jitter(view):
    return view - view.mean(1).round()[:, None]


def test_updates_parts_streams_and_views_are_augmented_independently():
    made = batches(labeled=6, unlabeled=6)
    all_of_them = [made.at(0), made.at(1), made.at(0, 0, 2), made.at(0, 1, 2)]
    noise = [jitter(view)[:3] for batch in all_of_them for view in (batch.x, batch.unlabeled, batch.second_view)]
    pairs = itertools.combinations(enumerate(noise), 2)
    same = [(a, b) for (a, one), (b, two) in pairs if torch.allclose(one, two, atol=1e-4)]
    # The first part of an update starts from the generator that the whole update starts from.
    assert [pair for pair in same if pair != (0, 6)] == []


def test_a_batch_is_a_function_of_the_seed_and_the_update():
    made = batches()
    first = [made.at(update) for update in range(6)]
    torch.rand(5)
    for update in (4, 0, 5, 2):
        assert equal(batches().at(update), first[update])
        assert equal(made.at(update), first[update])
    other = batches(seed=1).at(0)
    for name in ("x", "unlabeled", "second_view", "index"):
        assert not torch.equal(getattr(other, name), getattr(first[0], name))


def test_the_labeled_rows_do_not_depend_on_the_unlabeled_stream():
    with_u, without = batches(unlabeled=17), batches(unlabeled=0)
    for update in range(5):
        assert torch.equal(rows_of(with_u.at(update).x), without.at(update).index)


def test_streams_of_the_same_rows_are_drawn_independently():
    both = torch.arange(ROWS)
    made = batches(labeled=ROWS, unlabeled=ROWS, split=LabelSplit(both, both, both[:0]))
    assert not torch.equal(rows_of(made.at(0).x), rows_of(made.at(0).unlabeled))


def test_batches_are_preprocessed_and_the_examples_stay_bytes():
    split = split_labels(Y, 12, 0)
    made = Batches(examples(), split, 6, 10, Preprocess("centered"))
    batch = made.at(0)
    for view, rows in ((batch.x, Stream(split.labeled, 6, 0, "labelled").at(0)), (batch.unlabeled, batch.index)):
        torch.testing.assert_close(view, ((100 + rows) - 127.5)[:, None].expand(-1, 6) / 255)
    assert made._x.dtype == torch.uint8


def whitened(updates, unlabeled=10):
    """Batches with a whitening, and how many rows it was applied to each time."""
    x, before = examples(), Preprocess("centered")
    center, whitening = zca_matrix(x.x, 0.1, before)
    rows = []

    class Counting(Preprocess):
        def __call__(self, x):
            rows.append(len(x))
            return super().__call__(x)

        def to(self, device):
            return self

    preprocess = Counting("centered", center=center, whitening=whitening)
    return Batches(x, split_labels(Y, 12, 0), 6, unlabeled, preprocess, JITTER, updates=updates), rows


@pytest.mark.parametrize(("unlabeled", "used"), [(10, ROWS), (0, 12)])
def test_a_training_that_draws_images_again_whitens_each_that_it_uses_once_and_before(unlabeled, used):
    made, rows = whitened(100, unlabeled=unlabeled)
    assert sum(rows) == used
    batches_of_each, _ = whitened(0, unlabeled=unlabeled)
    for update in range(20):
        before, each = made.at(update), batches_of_each.at(update)
        for name in ("x", "unlabeled", "second_view"):
            one, other = getattr(before, name), getattr(each, name)
            assert one is other is None or torch.allclose(one, other, atol=1e-6)
    assert sum(rows) == used


def test_a_short_training_and_a_large_set_are_whitened_in_batches(monkeypatch):
    made, rows = whitened(2)
    assert rows == []
    made.at(0)
    assert rows == [6, 10]
    monkeypatch.setattr("advdrop.lab.data.batches.MOST_WHITENED", 100)
    assert whitened(100)[1] == []


def test_more_views_are_augmented_independently_and_change_nothing_else():
    two, five = (batches(views=views, augment=Augment(noise=0.1)).at(3) for views in (2, 5))
    assert equal(two, Batch(five.x, five.y, five.unlabeled, five.second_view, five.index))
    views = [five.unlabeled, five.second_view, *five.more_views]
    assert len(views) == 5
    assert all(not torch.equal(one, other) for i, one in enumerate(views) for other in views[:i])
    assert batches(views=5, augment=Augment()).at(3).more_views == ()
