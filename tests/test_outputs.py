from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from advdrop.outputs import part_of, replaced

Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Frozen:
    a: object
    b: object


CASES = {
    "tuple": ((1, 2), 1),
    "list, from the end": ([1, 2], -1),
    "named tuple": (Pair(1, 2), 1),
    "named tuple, by name": (Pair(1, 2), "b"),
    "torch's named tuple": (torch.return_types.max([torch.ones(1), torch.ones(1)]), 1),
    "dict": ({"a": 1, "b": 2}, "b"),
    "dict, by number": ({"a": 1, "b": 2}, 1),
    "dataclass": (Frozen(1, 2), "b"),
    "object": (SimpleNamespace(a=1, b=2), "b"),
}


@pytest.mark.parametrize(("output", "part"), CASES.values(), ids=CASES)
def test_a_part_is_replaced_in_a_copy(output, part):
    new = replaced(output, part, torch.tensor(5))
    assert type(new) is type(output)
    assert part_of(new, "b" if part == 1 and isinstance(new, dict) else part) == 5
    if hasattr(output, "a"):
        assert (new.a, output.b) == (1, 2)
    elif isinstance(output, dict):
        assert (new["a"], output["b"]) == (1, 2)
    else:
        assert (new[0], output[1]) == (1, 1 if "torch" in str(type(output)) else 2)


def test_a_number_that_is_a_key_is_no_position():
    assert replaced({1: "a", 2: "b"}, 1, torch.tensor(5)) == {1: 5, 2: "b"}


@pytest.mark.parametrize(("output", "part"), [((1,), 3), ((1,), "b"), ({"a": 1}, "b"), (None, "b"), (7, 0)])
def test_a_part_that_is_not_there(output, part):
    assert part_of(output, part) is None
