"""Which layers are ranked, and that units of a residual stream are lost on the stream."""

from itertools import combinations

import pytest
import torch
from torch import nn

from advdrop.analysis.audit import audit
from advdrop.analysis.layers import layers_of
from advdrop.insertion import adversarial_layers, insert
from advdrop.masks import AdversarialDropout

UNITS = 6


class Block(nn.Module):
    """A residual block: x + branch(x). A unit that the branch loses is still there in x."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(UNITS, UNITS)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(x + self.branch(self.relu(x)))  # relu runs twice


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, UNITS)
        self.one, self.two = Block(), Block()
        self.head = nn.Linear(UNITS, 3)

    def forward(self, x):
        return self.head(self.two(self.one(self.stem(x))))


def residual(branch=0.05):
    """A network whose branches change little: what matters is on the stream."""
    torch.manual_seed(0)
    model = Residual().eval()
    with torch.no_grad():
        for block in (model.one, model.two):
            block.branch.weight.mul_(branch)
            block.branch.bias.zero_()
    x = 2 * torch.randn(60, 4)
    return model, x, model(x).argmax(1)


def find(model, x, layers="all", **options):
    model.requires_grad_(False)
    return layers_of(model.eval(), x[:2], layers, logits=lambda output: output, **options)


@torch.no_grad()
def exhaustive(model, module, x, y, size):
    """The accuracy without the worst units of the output of a module, of all subsets of a size, in percent."""
    right = torch.ones(len(x), dtype=torch.bool)
    for lost in combinations(range(UNITS), size):
        mask = torch.ones(UNITS)
        mask[list(lost)] = 0
        handle = module.register_forward_hook(lambda _, given, output, mask=mask: output * mask)
        right &= model(x).argmax(1) == y
        handle.remove()
    return 100 * right.float().mean().item()


def test_the_blocks_are_on_the_stream_and_the_branches_are_bypassed():
    model, x, _ = residual()
    found = {layer.name: layer.bypassed for layer in find(model, x)}
    assert found == {"stem": False, "one.branch": True, "one": False, "two.branch": True, "two": False}


def test_a_lost_unit_of_the_stream_does_not_come_back_through_the_skip_connection():
    model, x, y = residual()
    ranking = audit(model, (x, y), layers="all", budgets=(1, 2), singles=True)
    found = {each.layer.name: each.audit for each in ranking.layers}
    modules = dict(model.named_modules())
    for name, one in found.items():
        assert one.worst[0] == 100.0
        assert one.worst[1] == pytest.approx(exhaustive(model, modules[name], x, y, 1)), name
        assert one.certain[2] <= exhaustive(model, modules[name], x, y, 2) + 1e-4 <= one.worst[2] + 2e-4
    for block in ("one", "two"):  # the branch alone would look harmless
        assert found[block].worst[1] < 60
        assert found[f"{block}.branch"].worst[1] > 80
    assert [each.layer.bypassed for each in ranking.layers] == [False, False, False, True, True]
    assert [each.mean_worst for each in ranking.layers] == sorted(each.mean_worst for each in ranking.layers)


class InPlace(nn.Module):
    """A block as it is often written: the sum and the last ReLU overwrite what the branch has returned."""

    def __init__(self):
        super().__init__()
        self.branch, self.relu = nn.Linear(UNITS, UNITS), nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.branch(x)
        out += x
        return self.relu(out)


def test_a_sum_in_place_is_not_taken_for_the_branch():
    model, x, _ = residual()
    model.one, model.two = InPlace(), InPlace()
    found = {layer.name: layer.bypassed for layer in find(model, x)}
    assert found == {
        "stem": False, "one.branch": True, "one.relu": False, "two.branch": True, "two.relu": False,
    }  # fmt: skip
    y = model(x).argmax(1)
    modules = dict(model.named_modules())
    for each in audit(model, (x, y), layers="all", budgets=(1,), singles=True).layers:
        assert each.audit.worst[1] == pytest.approx(exhaustive(model, modules[each.layer.name], x, y, 1))
    first = nn.Sequential(nn.ReLU(inplace=True), model.head)  # changes its input
    assert [layer.bypassed for layer in find(first, torch.randn(2, UNITS))] == [False]


def test_a_module_that_runs_several_times_can_be_named():
    model, x, y = residual()
    assert [layer.name for layer in find(model, x, ["two.relu"])] == ["two.relu"]
    found = audit(model, (x, y), layers=["two.relu"], budgets=(1,), singles=True).layers[0].audit
    assert found.worst[1] == pytest.approx(exhaustive(model, model.two.relu, x, y, 1))


def test_tensors_that_were_listed_and_logits_are_left_out():
    model = nn.Sequential(
        nn.Identity(),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), nn.Dropout(), AdversarialDropout(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    x = torch.randn(5, 1, 6, 6)
    found = find(model, x)
    assert [layer.name for layer in found] == ["1.0", "1.1", "4"]
    assert [layer.units for layer in found] == [4, 4, 4]
    assert {layer.granularity for layer in found} == {"channel"}
    assert not any(layer.bypassed for layer in found)
    assert [layer.units for layer in find(model, x, channels=False)] == [64, 64, 4]


class Tokens(nn.Module):
    """A recurrent network on tokens, with a second path around it, that returns a dict."""

    def __init__(self, around):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(9, 5), nn.LSTM(5, 5, batch_first=True), nn.Linear(5, 3)
        self.around = around

    def forward(self, ids):
        h = self.embedding(ids)
        out = self.lstm(h)[0]
        return {"logits": self.head((out + h if self.around else out)[:, -1])}


@pytest.mark.parametrize("around", [False, True])
def test_tokens_and_modules_that_return_tuples(around):
    torch.manual_seed(0)
    model, ids = Tokens(around), torch.randint(9, (20, 4))
    y = model(ids)["logits"].argmax(1)
    ranking = audit(model, ({"ids": ids}, y), layers="all", budgets=(1,), draws=2, faults=["stuck:9"])
    found = {each.layer.name: each.layer for each in ranking.layers}
    assert {name: layer.bypassed for name, layer in found.items()} == {"embedding": False, "lstm": around}
    assert found["lstm"].part == 0
    assert found["lstm"].granularity == "feature"
    assert [each.audit.examples for each in ranking.layers] == [20, 20]
    assert [(each.faults[0].fault, each.faults[0].count) for each in ranking.layers] == [("stuck at 9", 1)] * 2


def test_layers_that_the_network_has_already_are_kept_and_do_not_disturb():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(30, 4)
    y = plain(x).argmax(1)
    expected = audit(plain, (x, y), layers="all", budgets=(1, 2)).rows()
    marked = insert(plain, after="1", p=0.3)
    own = adversarial_layers(marked)
    assert audit(marked, (x, y), layers="all", budgets=(1, 2)).rows() == expected
    assert adversarial_layers(marked) == own
    assert all(parameter.requires_grad for parameter in marked.parameters())
    single = audit(marked, (x, y), budgets=(1, 2), singles=False)
    named = {each.layer.name: each.audit for each in audit(marked, (x, y), layers=["1", "3"], budgets=(1, 2)).layers}
    assert named["1"] == single
    assert named["3"].exact  # below it is a layer of the network
    assert not named["1"].exact


def test_rows_summary_and_json():
    model, x, y = residual()
    done = []
    ranking = audit(
        model, (x, y), layers=["stem", "one"], budgets=(1,), faults=["sign"], name="mine", progress=done.append
    )
    assert done == [60, 120]
    first, second = ranking.rows()
    assert {first["layer"], second["layer"]} == {"stem", "one"}
    stem = first if first["layer"] == "stem" else second
    assert set(stem) - set(ranking.rows()[0]) <= {"sign flip, 1"}
    assert stem["worst_0"] == 100
    assert 0 < stem["sign flip, 1"] < 100
    assert "one: Block, 6 units; 0: 100.0, 1: " in ranking.summary
    assert "bypassed" not in ranking.summary
    values = ranking.json()
    assert values["name"] == "mine"
    assert len(values["layers"][0]["audit"]["fewest"]) == 60


def test_errors():
    model, x, y = residual()
    for options, message in (
        ({"layers": ["on"]}, "there is no module 'on'.*one"),
        ({"layers": []}, "no layer that an audit could rank"),
        ({"layers": ["stem"], "faults": ["stick"]}, "there is no fault 'stick'.*stuck"),
        ({"faults": ["sign"]}, "one AdversarialDropout layer, got 0.*layers='all'"),
    ):
        with pytest.raises(ValueError, match=message):
            audit(model, (x, y), **options)
    with pytest.raises(ValueError, match="no examples"):
        audit(model, [], layers="all")
    with pytest.raises(ValueError, match="faults are measured in layers"):
        audit(insert(model, after="one"), (x, y), faults=["sign"])
    unused = nn.Sequential(nn.Linear(4, 3))
    unused[0].extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"'0.extra' does not return units in a pass; there are 0"):
        audit(unused, (x, y), layers=["0.extra"])
    with pytest.raises(ValueError, match="Sequential has no layer"):
        audit(unused, (x, y), layers="all")
