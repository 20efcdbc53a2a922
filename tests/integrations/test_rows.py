"""Rows without a label, and the order of rows."""

import torch

from advdrop.integrations.rows import LabelMissing, shuffled


def test_shuffled_rows():
    rounds = shuffled(7, 0, 21, seed=0)
    assert [sorted(rounds[start : start + 7]) for start in (0, 7, 14)] == [list(range(7))] * 3
    assert len({tuple(rounds[start : start + 7]) for start in (0, 7, 14)}) == 3
    assert [row for first in range(0, 20, 4) for row in shuffled(7, first, 4, seed=0)] == rounds[:20]
    assert shuffled(7, 0, 7, seed=1) != rounds[:7]


def test_rows_without_labels_get_the_form_of_the_others():
    collate = LabelMissing(list, ("labels",))
    rows = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [5, 6], "labels": [0, 1]}])
    assert rows[0]["labels"] == [-100, -100, -100]
    assert collate([{"labels": [0.0, 1.0, 1.0]}, {}])[1]["labels"] == [-100.0, -100.0, -100.0]
    assert torch.equal(collate([{"labels": torch.ones(2).long()}, {}])[1]["labels"], torch.tensor([-100, -100]))
    pixels = collate([{"labels": torch.ones(2, 3).long()}, {}])[1]["labels"]
    assert torch.equal(pixels, torch.full((2, 3), -100))
    assert repr(collate([{}, {"labels": 0.7}])[0]["labels"]) == "-100.0"  # an integer would make all of them integers
    assert repr(collate([{}, {"labels": 1}])[0]["labels"]) == "-100"
    assert torch.equal(collate([{}, {"labels": torch.tensor(1)}])[0]["labels"], torch.tensor(-100))
    assert repr(collate([{}, {"labels": torch.tensor([1], dtype=torch.uint8).numpy()[0]}])[0]["labels"]) == "-100"
    assert collate([{}, {"labels": torch.ones(2, dtype=torch.uint8)}])[0]["labels"].tolist() == [-100, -100]
    assert collate(["not", "dicts"]) == ["not", "dicts"]


def test_a_batch_without_any_label():
    needs_labels = LabelMissing(lambda rows: {"labels": [row["labels"] for row in rows]}, ("labels",))
    assert needs_labels([{}, {"labels": None}]) == {"labels": [-100, -100]}
    counts_keys = LabelMissing(lambda rows: {"keys": [len(row) for row in rows]}, ("own", "label"))
    found = counts_keys([{"x": 1, "label": None}, {"x": 2}])
    assert found["keys"] == [1, 1]
    assert found["own"].tolist() == [-100, -100]
