import re
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from advdrop import checks

ON_CPU = torch.ones(1)
ON_DEVICE = SimpleNamespace(is_meta=False, is_cpu=False)


@pytest.fixture(autouse=True)
def _nothing_looked_at_yet(monkeypatch):
    monkeypatch.setattr(checks, "_looked", Counter())


@pytest.mark.parametrize(
    ("when", "tensor", "expected"),
    [
        ("auto", ON_CPU, [True] * 5),
        ("always", ON_CPU, [True] * 5),
        ("never", ON_CPU, [False] * 5),
        ("auto", ON_DEVICE, [True, True, True, False, False]),
        ("always", ON_DEVICE, [True] * 5),
        ("never", ON_DEVICE, [False] * 5),
        ("auto", torch.ones(1, device="meta"), [False] * 5),
        ("always", torch.ones(1, device="meta"), [False] * 5),
    ],
)
def test_when_values_are_looked_at(when, tensor, expected):
    with checks.value_checks(when):
        assert [checks.due("a check", tensor) for _ in range(5)] == expected


def test_each_check_has_its_own_first_steps():
    assert [checks.due("one", ON_DEVICE) for _ in range(4)] == [True, True, True, False]
    assert checks.due("another", ON_DEVICE)


def test_value_checks_nest_and_come_back_after_an_error():
    with checks.value_checks("never"):
        with checks.value_checks("always"):
            assert checks.due("a check", ON_CPU)
        assert not checks.due("a check", ON_CPU)
        with pytest.raises(RuntimeError, match="stop"), checks.value_checks("always"):
            raise RuntimeError("stop")
        assert not checks.due("a check", ON_CPU)
    assert checks.due("a check", ON_CPU)


def test_value_checks_are_per_thread():
    seen = []
    with checks.value_checks("never"):
        thread = threading.Thread(target=lambda: seen.append(checks.due("a check", ON_CPU)))
        thread.start()
        thread.join()
    assert seen == [True]


def test_value_checks_refuses_other_words():
    with (
        pytest.raises(ValueError, match="'auto', 'always' or 'never', got 'sometimes'"),
        checks.value_checks("sometimes"),
    ):
        pass


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 1, 1.0])
def test_fractions(value):
    assert checks.fraction("share", value) == value
    assert type(checks.fraction("share", value)) is float


@pytest.mark.parametrize("value", [1e-9, 3, 1e9])
def test_positives(value):
    assert checks.positive("sigma", value) == value


@pytest.mark.parametrize("value", [0, 0.0, -0.0, 1e-9, 3, 1e9])
def test_numbers_that_are_not_negative(value):
    assert checks.not_negative("power", value) == value
    assert type(checks.not_negative("power", value)) is float


@pytest.mark.parametrize(("value", "least"), [(1, 1), (0, 0), (7, 3)])
def test_counts(value, least):
    assert checks.count("units", value, least) == value


NAN, INF = float("nan"), float("inf")
REFUSED = [
    (checks.fraction, 1.0001, ValueError, "must be in [0, 1], got 1.0001"),
    (checks.fraction, -1e-9, ValueError, "must be in [0, 1], got -1e-09"),
    (checks.fraction, NAN, ValueError, "must be in [0, 1], got nan"),
    (checks.fraction, False, TypeError, "must be a number in [0, 1], got False (bool)"),
    (checks.fraction, None, TypeError, "must be a number in [0, 1], got None (NoneType)"),
    (checks.positive, 0, ValueError, "must be positive and finite, got 0"),
    (checks.positive, -1.0, ValueError, "must be positive and finite, got -1.0"),
    (checks.positive, INF, ValueError, "must be positive and finite, got inf"),
    (checks.positive, NAN, ValueError, "must be positive and finite, got nan"),
    (checks.positive, True, TypeError, "must be a number, got True (bool)"),
    (checks.positive, "1", TypeError, "must be a number, got '1' (str)"),
    (checks.not_negative, -1e-9, ValueError, "must be zero or more and finite, got -1e-09"),
    (checks.not_negative, INF, ValueError, "must be zero or more and finite, got inf"),
    (checks.not_negative, NAN, ValueError, "must be zero or more and finite, got nan"),
    (checks.not_negative, False, TypeError, "must be a number, got False (bool)"),
    (checks.not_negative, "0", TypeError, "must be a number, got '0' (str)"),
    (checks.count, 0, ValueError, "must be at least 1, got 0"),
    (checks.count, 1.0, TypeError, "must be an int, got 1.0 (float)"),
    (checks.count, True, TypeError, "must be an int, got True (bool)"),
    (lambda name, value: checks.choice(name, value, ("a", "b")), "c", ValueError, "must be one of 'a', 'b', got 'c'"),
    (checks.floating, torch.ones(2).int(), TypeError, "must be floating point, got torch.int32"),
    (checks.floating, torch.ones(2, dtype=torch.complex64), TypeError, "must be floating point, got torch.complex64"),
    (checks.floating, [1.0], TypeError, "must be a tensor, got list"),
    (checks.floating, torch.tensor(1.0), ValueError, "must hold at least one example, got shape ()"),
    (checks.floating, torch.ones(0, 3), ValueError, "must hold at least one example, got shape (0, 3)"),
    (
        checks.finite,
        torch.tensor([[1.0], [NAN], [INF]]),
        ValueError,
        "has NaN or infinity in 2 of 3 examples (rows 1, 2)",
    ),
    (checks.finite, torch.tensor([[[0.0, -INF]]]), ValueError, "has NaN or infinity in 1 of 1 examples (rows 0)"),
    (checks.binary, torch.tensor([[0.0, 1.0], [1.0, -1.0]]), ValueError, "must hold only 0 and 1, got -1.0"),
    (checks.binary, torch.tensor([[NAN]]), ValueError, "must hold only 0 and 1, got nan"),
    (checks.binary, torch.tensor([[INF]]), ValueError, "must hold only 0 and 1, got inf"),
    (checks.binary, torch.tensor([[1.0 + 2**-23]]), ValueError, "must hold only 0 and 1, got 1.00000011920"),
    (checks.binary, torch.tensor([[1e-30]]), ValueError, "must hold only 0 and 1, got 1"),
]


@pytest.mark.parametrize(("check", "value", "error", "message"), REFUSED)
def test_refusals_name_the_argument_and_show_its_value(check, value, error, message):
    with pytest.raises(error, match=f"^that {re.escape(message)}"):
        check("that", value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_masks_and_finite_tensors_pass(dtype):
    mask = torch.tensor([[0.0, 1.0], [-0.0, 1.0]], dtype=dtype)
    checks.binary("mask", mask)
    checks.finite("mask", torch.finfo(dtype).max * mask)
    assert checks.floating("mask", mask) is mask
    assert mask.tolist() == [[0.0, 1.0], [-0.0, 1.0]]


def test_values_pass_unseen_when_checks_are_off():
    with checks.value_checks("never"):
        checks.finite("that", torch.tensor([[NAN]]))
        checks.binary("that", torch.tensor([[0.5]]))
        checks.labels(torch.tensor([9]), 3)


def test_same_shape():
    checks.same_shape("a", torch.ones(2, 3), "b", torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"^a and b must have the same shape, got \(2, 3\) and \(3, 2\)$"):
        checks.same_shape("a", torch.ones(2, 3), "b", torch.ones(3, 2))


def test_labels_that_pass():
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        checks.labels(torch.tensor([0, 2, 1], dtype=dtype), 3)
    checks.labels(torch.empty(0, dtype=torch.int64), 3)


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (torch.tensor([0, 3]), ValueError, r"0\.\.2 for 3 outputs, got values from 0 to 3"),
        (torch.tensor([-100, 1]), ValueError, r"0\.\.2 for 3 outputs, got values from -100 to 1"),
        (torch.tensor([0.0]), TypeError, r"integers, got torch\.float32; use y\.long\(\)"),
        (torch.tensor([True]), TypeError, r"integers, got torch\.bool"),
        (torch.tensor([[0]]), ValueError, r"vector \(B,\), got shape \(1, 1\)"),
        (torch.tensor(0), ValueError, r"vector \(B,\), got shape \(\)"),
    ],
)
def test_labels_that_do_not(y, error, message):
    with pytest.raises(error, match=message):
        checks.labels(y, 3)
