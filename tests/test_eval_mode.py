import pytest
from torch import nn

from advdrop.eval_mode import eval_mode


class Merging(nn.Linear):
    """Merges its adapter in evaluation mode, as LoRA layers do."""

    merged = False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)


class Refreezing(nn.Sequential):
    """Freezes its norms each time it is set to training mode."""

    def train(self, mode=True):
        super().train(mode)
        for module in self:
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


def shared():
    norm = nn.BatchNorm1d(2).eval()
    return nn.Sequential(nn.Sequential(norm, nn.Dropout()), nn.Sequential(nn.Dropout(), norm).eval(), nn.Dropout())


NETWORKS = {
    "all train": lambda: nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)),
    "all evaluate": lambda: nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)).eval(),
    "a frozen norm": lambda: nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2).eval(), nn.Dropout())),
    "one part trains": lambda: nn.Sequential(nn.Sequential(nn.Dropout()).eval(), nn.Dropout().train()),
    "only the outer one evaluates": lambda: setattr(net := nn.Sequential(nn.Dropout()), "training", False) or net,
    "a module in two places": shared,
    "refreezing": lambda: Refreezing(nn.BatchNorm1d(2), nn.Dropout()).train(),
    "refreezing, thawed": lambda: setattr((net := Refreezing(nn.BatchNorm1d(2)))[0], "training", True) or net,
    "merging": lambda: nn.Sequential(Merging(2, 2), Merging(2, 2).eval(), nn.Sequential(Merging(2, 2))),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_mode_back(make, fails):
    network = make()

    def state():
        return [(module.training, getattr(module, "merged", None)) for module in network.modules()]

    before = state()
    with pytest.raises(KeyError) if fails else eval_mode(network), eval_mode(network):
        assert not any(module.training for module in network.modules())
        assert all(module.merged for module in network.modules() if isinstance(module, Merging))
        if fails:
            raise KeyError
    assert state() == before
