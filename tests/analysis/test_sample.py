"""Random samples with the same number of each class."""

from collections import UserDict

import pytest
import torch
from torch import nn

from advdrop.analysis.audit import audit
from advdrop.analysis.sample import balanced, batches_of, rows_of, sampled
from advdrop.masks import AdversarialDropout

SORTED = torch.repeat_interleave(torch.arange(4), torch.tensor([50, 30, 3, 17]))


@pytest.mark.parametrize(
    ("count", "expected"), [(4, [1, 1, 1, 1]), (12, [3, 3, 3, 3]), (33, [10, 10, 3, 10]), (999, [50, 30, 3, 17])]
)
def test_classes_are_equally_frequent_as_far_as_there_are_enough(count, expected):
    found = balanced(SORTED, count)
    assert found == sorted(set(found))
    assert torch.bincount(SORTED[found], minlength=4).tolist() == expected


def test_the_sample_is_random_and_can_be_repeated():
    one, again, other = (balanced(SORTED, 12, seed) for seed in (0, 0, 1))
    assert one == again
    assert one != other
    counts = torch.zeros(100)
    for seed in range(300):
        counts[balanced(SORTED, 4, seed)] += 1
    assert counts[:50].min() > 0  # every row of a class has its turn
    with pytest.raises((TypeError, ValueError), match="examples"):
        balanced(SORTED, 0)


def test_batches_of_a_pair_and_of_nested_inputs():
    x, y = torch.arange(250.0)[:, None], torch.arange(250)
    found = list(batches_of((x, y)))
    assert [len(labels) for _, labels in found] == [100, 100, 50]
    assert torch.equal(torch.cat([rows for rows, _ in found]), x)
    loader = [(x, y), (x, y)]
    assert list(batches_of(loader)) == loader
    kept = list(batches_of((UserDict(ids=x), y)))  # as a tokenizer of Hugging Face returns
    assert torch.equal(kept[2][0]["ids"], x[200:])
    nested = {"ids": x, "more": (x, 3.5, torch.ones(7))}
    chosen = rows_of(nested, [4, 9], 250)
    assert chosen["ids"].flatten().tolist() == chosen["more"][0].flatten().tolist() == [4, 9]
    assert chosen["more"][1] == 3.5
    assert len(chosen["more"][2]) == 7


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (torch.ones(2, 3), "a Tensor"),
        ((torch.ones(2, 3), [0, 1]), "a Tensor"),
        ([{"x": 1}], "a dict"),
        ([(1,)], "1 items"),
    ],
)
def test_batches_that_are_no_pairs_are_refused(data, shown):
    with pytest.raises(TypeError, match=rf"pair of inputs and labels, got {shown};.*\[\(x, y\), ...\]"):
        list(batches_of(data))


def test_a_sample_of_batches_is_that_of_all_rows():
    x = torch.arange(100.0)[:, None]
    batches = [(x[:30], SORTED[:30]), (x[30:33], SORTED[30:33]), (x[33:], SORTED[33:])]
    found, positions = sampled(iter(batches), 12, seed=3)
    assert positions == balanced(SORTED, 12, seed=3)
    assert torch.cat([rows for rows, _ in found]).flatten().long().tolist() == positions
    assert torch.cat([y for _, y in found]).tolist() == SORTED[positions].tolist()
    assert sampled([], 5, 0) == ([], [])


def test_an_audit_names_examples_by_their_position_in_the_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), AdversarialDropout(), nn.Linear(6, 3))
    x = 2 * torch.randn(80, 4)
    y = model.eval()(x).argmax(1)
    whole, part = audit(model, (x, y), budgets=(1,)), audit(model, (x, y), budgets=(1,), examples=20, seed=5)
    assert part.examples == 20
    assert part.sample == balanced(y, 20, seed=5)
    assert part.fewest == [whole.fewest[place] for place in part.sample]
    assert part.fragile_examples == [pair for pair in whole.fragile_examples if pair[0] in part.sample]
    assert part.fragile_examples
    ranked = audit(model, (x, y), layers=["1"], budgets=(1,), examples=20, seed=5).layers[0].audit
    assert ranked == part
