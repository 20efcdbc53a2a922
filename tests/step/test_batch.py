import pytest
import torch
from torch import nested
from torch.nn.utils.rnn import pack_sequence

from advdrop import CrossEntropy, Step
from advdrop.step.batch import Batch

X, Y, U = torch.ones(2, 3), torch.zeros(2).long(), torch.zeros(4, 3)
TOKENS = {"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(2, 5).bool()}


def test_terms_for_unlabeled_rows_run_on_the_labeled_ones_if_there_are_no_others():
    batch = Batch(X, Y)
    assert batch.inputs("unlabeled") is X
    assert batch.second("unlabeled") is X
    assert batch.rows("unlabeled") == batch.rows("labeled") == "labeled"
    assert batch.labels() is Y
    both = Batch(X, Y, U)
    assert both.inputs("unlabeled") is U
    assert both.inputs("labeled") is X
    assert both.rows("unlabeled") == "unlabeled"


def test_the_second_view_is_that_of_the_unlabeled_rows():
    view = U + 1
    batch = Batch(X, Y, U, second_view=view)
    assert batch.second("unlabeled") is view
    assert batch.second("labeled") is X
    supervised = Batch(X, Y, second_view=X + 1)
    assert supervised.second("labeled") is supervised.second("unlabeled") is supervised.second_view


def test_unlabeled_rows_alone():
    batch = Batch(unlabeled=U)
    assert batch.second("unlabeled") is U
    with pytest.raises(ValueError, match="needs labeled rows"):
        batch.inputs("labeled")
    with pytest.raises(ValueError, match="needs labels"):
        batch.labels()


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("kind", INTEGERS)
def test_labels_of_any_integer_type_are_the_same_labels(kind):
    y = torch.tensor([0, 2, 1])
    assert torch.equal(Batch(torch.ones(3, 3), y.to(getattr(torch, kind))).labels(), y)
    assert Batch(torch.ones(3, 3), y.to(getattr(torch, kind))).labels().dtype == torch.int64


def test_a_class_in_a_small_type_is_no_negative_ignore_index():
    step = Step(torch.nn.Linear(3, 200), CrossEntropy(), ignore_index=-100)
    x, y = torch.ones(2, 3), torch.tensor([156, 3])  # in uint8, 156 equals -100
    assert step(x, y.to(torch.uint8)).loss == step(x, y).loss


@pytest.mark.parametrize(
    ("inputs", "device"),
    [
        (X, "cpu"),
        ((X, Y), "cpu"),
        (TOKENS, "cpu"),
        ({"scale": torch.tensor(2.0), "x": X, "names": ["a", "b"]}, "cpu"),
        ({"x": torch.ones(2, 3, device="meta")}, "meta"),
        ({"lengths": torch.tensor([1, 3]), "x": torch.ones(2, 3, device="meta")}, "meta"),
        ([X, X], "cpu"),
        (object(), "cpu"),
    ],
)
def test_inputs_of_any_kind(inputs, device):
    batch = Batch(inputs, Y, index=torch.tensor([5, 7]))
    assert batch.inputs("labeled") is inputs
    assert batch.device.type == device


@pytest.mark.parametrize(
    "inputs",
    [
        (
            torch.ones(7, 3),
            torch.zeros(2, 9).long(),
            torch.zeros(7).long(),
        ),  # the nodes, edges and graphs of two graphs
        [torch.ones(5, 3), torch.ones(4, 3)],  # two sequences
        [torch.ones(5, 3), torch.ones(5, 3)],  # which may be equally long
        ([torch.ones(0, 3), torch.ones(0, 3)],),
        {"images": [torch.ones(3, 8, 8), torch.ones(3, 8, 6)], "size": torch.tensor([8, 8, 8])},
    ],
)
def test_inputs_may_have_tensors_of_different_lengths(inputs):
    assert Batch(inputs, Y).inputs("labeled") is inputs
    assert Batch(inputs, Y).count("labeled") is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_sizes():
    strided, jagged = (nested.nested_tensor([X, X[:1]], layout=kind) for kind in (torch.strided, torch.jagged))
    assert Batch(jagged, Y).count("labeled") == 2
    for inputs in (strided, {"x": strided}):
        with pytest.raises(TypeError, match=r"x has a nested tensor without sizes; make it with"):
            Batch(inputs, Y)


@pytest.mark.parametrize("lengths", [(3, 1), (2, 2), (4,)])
def test_the_rows_of_a_packed_sequence_are_its_examples(lengths):
    packed, rows = pack_sequence([torch.ones(n, 2) for n in lengths]), len(lengths)
    assert Batch(packed, torch.zeros(rows).long(), index=torch.arange(rows)).count("unlabeled") == rows
    for inputs in (packed, {"x": packed}, (packed, torch.ones(rows, 3))):
        assert Batch(inputs, torch.zeros(rows).long()).count("labeled") == rows
        with pytest.raises(ValueError, match=f"got {rows} labeled rows x and 5 labels y"):
            Batch(inputs, torch.zeros(5).long())


REFUSED = {
    "nothing": ({}, ValueError, "needs labeled inputs x, unlabeled inputs, or both"),
    "no labels": ({"x": X}, ValueError, "x and their labels y together"),
    "labels alone": ({"y": Y, "unlabeled": U}, ValueError, "x and their labels y together"),
    "bytes": ({"x": X.byte(), "y": Y}, TypeError, r"x must be floating point.*x\.float\(\)"),
    "empty": ({"x": X[:0], "y": Y[:0]}, ValueError, r"x must hold at least one example.*\(0, 3\)"),
    "empty dict": ({"x": {"a": X[:0]}, "y": Y[:0]}, ValueError, "x must hold at least one example, got none"),
    "one label": ({"x": X, "y": torch.tensor(1)}, ValueError, r"labels must be \(B,\) or \(B, ...\), got.*tensor\(1\)"),
    "list of labels": ({"x": X, "y": [0, 1]}, TypeError, "labels must be a tensor, got list"),
    "rows and labels": ({"x": X, "y": torch.zeros(4).long()}, ValueError, "2 labeled rows x and 4 labels"),
    "tokens and labels": ({"x": TOKENS, "y": torch.zeros(4).long()}, ValueError, "2 labeled rows x and 4 labels"),
    "views": (
        {"unlabeled": U, "second_view": U[:, :2]},
        ValueError,
        r"unlabeled and second.*\(4, 3\) and \(4, 2\)",
    ),
    "view of the labeled": (
        {"x": X, "y": Y, "second_view": U},
        ValueError,
        r"x and second.*\(2, 3\) and \(4, 3\)",
    ),
    "part of a view": (
        {"unlabeled": TOKENS, "second_view": {"input_ids": TOKENS["input_ids"]}},
        ValueError,
        "unlabeled has 2 tensors, and its second_view has 1",
    ),
    "part of another view": (
        {"unlabeled": TOKENS, "second_view": TOKENS, "more_views": [{"input_ids": TOKENS["input_ids"]}]},
        ValueError,
        "unlabeled has 2 tensors, and its more_views has 1",
    ),
    "iterator": ({"x": iter([X, X]), "y": Y}, TypeError, "x has a list_iterator, which is used up.*as a list"),
    "generator": ({"unlabeled": {"parts": (part for part in (U, U))}}, TypeError, "unlabeled has a generator"),
    "too many indices": ({"unlabeled": U, "index": torch.arange(5)}, ValueError, "one integer for each of the 4"),
    "float indices": ({"unlabeled": U, "index": torch.ones(4)}, ValueError, "got torch.float32"),
    "bool indices": ({"unlabeled": U, "index": torch.ones(4).bool()}, ValueError, "got torch.bool"),
    "complex indices": ({"unlabeled": U, "index": torch.ones(4) * 1j}, ValueError, "got torch.complex64"),
    "matrix of indices": ({"unlabeled": U, "index": torch.ones(4, 1).long()}, ValueError, r"of shape \(4, 1\)"),
    "list of indices": ({"unlabeled": U, "index": [0, 1, 2, 3]}, TypeError, "index must be a tensor, got list"),
}


@pytest.mark.parametrize(("given", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        Batch(**given)
