"""An explanation shows what the objective does."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from advdrop.analysis.explain import explain
from advdrop.divergences import kl, qe
from advdrop.insertion import insert
from advdrop.masks import AdversarialDropout, FirstOrder, Probe, flip_mask
from advdrop.objectives import EMA, CrossEntropy, SAdD, VAdD
from advdrop.step.step import Step
from analyses import EXPLANATION


def below():
    return [nn.Flatten(), nn.Linear(16, 12), nn.ReLU()]


def network(p=0.5, delta=0.25, layers=1):
    torch.manual_seed(0)
    return nn.Sequential(*below(), *(AdversarialDropout(p, delta) for _ in range(layers)), nn.Linear(12, 3))


class Other(nn.Module):
    """A network with a forward pass of its own."""

    def __init__(self):
        super().__init__()
        self.body, self.noise = nn.Sequential(*below()), nn.Dropout(0.5)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return {"logits": self.head(self.noise(self.body(x)))}


@pytest.fixture
def x():
    return torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(1))


def test_masks_jacobian_and_probabilities_are_those_of_the_network(x):
    model = network().eval()
    found = explain(model, x, seed=3)
    h, head = model[:3](x[None]).detach(), model[4]
    sampled, adversarial = torch.tensor([found.sampled]).float(), torch.tensor([found.adversarial]).float()
    clean = head(h * sampled * 2)
    ones = torch.ones_like(h, requires_grad=True)
    (jacobian,) = torch.autograd.grad(kl(clean.detach(), head(h * ones)).sum(), ones)
    torch.testing.assert_close(torch.tensor([found.jacobian]), jacobian)
    assert torch.equal(adversarial, flip_mask(sampled, jacobian, 3))
    after = head(h * adversarial * 2)
    torch.testing.assert_close(torch.tensor(found.whole), head(h)[0].softmax(0))
    torch.testing.assert_close(torch.tensor(found.before), clean[0].softmax(0))
    torch.testing.assert_close(torch.tensor(found.after), after[0].softmax(0))
    assert found.divergence[0] == pytest.approx(0.0, abs=1e-6)
    assert found.divergence[1] == pytest.approx(float(kl(clean, after).detach()), rel=1e-4)
    assert found.budget == 3


def test_an_inserted_layer_gives_the_same_explanation(x):
    model = network()
    found = explain(model, x, seed=3)
    plain = insert(nn.Sequential(*model[:3], model[4]), after="2", delta=0.25)
    assert explain(plain, x, seed=3) == found
    other = Other()
    other.load_state_dict({f"body.{key}": value for key, value in model[:3].state_dict().items()}, strict=False)
    other.head = model[4]
    inserted = insert(other, after="noise", delta=0.25)  # the dropout itself stays in evaluation mode
    assert explain(inserted, x, seed=3) == found
    with torch.no_grad():
        assert explain(inserted.train(), x, seed=3) == found


def test_a_network_that_changes_its_input_is_refused(x):
    inserted = insert(nn.Sequential(nn.Threshold(0.5, 0.0, inplace=True), *network()[:3], network()[4]), after="3")
    with pytest.raises(ValueError, match=r"changes its input in place, and explain runs it several times"):
        explain(inserted, x)


def test_a_term_tells_what_its_target_is(x):
    assert explain(network(), x, label=2, term=SAdD()).target == "the label 2"
    assert explain(network(), x, label=2, term=VAdD()).target == "the network's own clean output"
    uniform = VAdD(target=lambda passes, rows: torch.zeros(1, 3))
    assert explain(network(), x, term=uniform).target == "the target of the term"
    with pytest.raises(ValueError, match="needs the label"):
        explain(network(), x, term=SAdD())


def test_the_same_seed_is_the_same_mask(x):
    model = network()
    assert explain(model, x, seed=1) == explain(model, x, seed=1)
    assert explain(model, x, seed=1).sampled != explain(model, x, seed=2).sampled


def test_only_the_mask_is_random(x):
    model = network()
    model.insert(3, nn.Dropout(0.5))
    torch.manual_seed(0)
    first = explain(model.train(), x)
    torch.manual_seed(1)
    assert explain(model, x) == first


def test_the_label_is_the_target_if_nothing_is_dropped(x):
    """With its own output as the target, the Jacobian would be zero."""
    model = network(p=0.0)
    found = explain(model, x, 2, classes=["cat", "dog", "owl"])
    assert found.target == "the label owl"
    assert found.sampled == [1] * 12
    assert found.divergence[1] > found.divergence[0]
    assert explain(network(), x, 2).target == "the network's own clean output"
    assert explain(network(), x, 2, target="label").target == "the label 2"


def test_any_term_can_be_explained(x):
    term = VAdD(delta=0.5, divergence=qe, noise="shared", search=FirstOrder(order="smallest"))
    assert explain(network(), x, term=term).budget == 6
    assert explain(network(), x, term=VAdD(delta=0.5)) == explain(network(), x, delta=0.5)
    assert explain(network(), x, delta=0.5).budget == 6


def test_a_row_of_a_table_has_no_image():
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), AdversarialDropout(0.5, 0.3), nn.Linear(12, 2))
    assert explain(model, torch.rand(5)).image == []


def test_the_image_is_shown_over_its_own_range(x):
    found = explain(network(), 3 * x - 1)
    flat = [value for line in found.image for value in line]
    assert (min(flat), max(flat), len(found.image), len(found.image[0])) == (0.0, 1.0, 4, 4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inserted", [True, False])
def test_the_network_is_left_as_it_was(x, training, inserted):
    model = insert(nn.Sequential(*below(), nn.Linear(12, 3)), after="2", delta=0.25) if inserted else network()
    model.train(training)
    before = [parameter.clone() for parameter in model.parameters()]
    noise = torch.get_rng_state()
    explain(model, x)
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(module.training is training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("layers", [0, 2])
def test_the_network_must_have_one_layer(x, layers):
    with pytest.raises(ValueError, match=f"one AdversarialDropout layer, got {layers} in Sequential"):
        explain(network(layers=layers), x)


def test_the_layer_must_run_once(x):
    layer = AdversarialDropout(0.5, 0.25)
    with pytest.raises(ValueError, match="it ran 2 times"):
        explain(nn.Sequential(*below(), layer, nn.Linear(12, 12), layer, nn.Linear(12, 3)), x)


def test_the_target_label_needs_a_label(x):
    with pytest.raises(ValueError, match="needs the label"):
        explain(network(), x, target="label")


def test_another_target_is_refused(x):
    """A mistyped one was taken for the label, which was 0 if none was given."""
    with pytest.raises(ValueError, match="target must be one of 'output', 'label', got 'outputs'"):
        explain(network(), x, target="outputs")


def test_each_output_needs_a_name(x):
    with pytest.raises(ValueError, match="name the 3 outputs of the network, got 2 names"):
        explain(network(), x, classes=["cat", "dog"])


def test_places_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), AdversarialDropout(), nn.Conv2d(4, 3, 1))
    with pytest.raises(ValueError, match=r"explain needs one prediction.*\(1, 3, 5, 5\); wrap the network in a module"):
        explain(model, torch.randn(1, 5, 5))


def test_integers_are_refused(x):
    with pytest.raises(TypeError, match="x"):
        explain(network(), x.long())


def test_flips_are_sorted_by_gain():
    assert EXPLANATION.flips == [2, 0]


def test_summary():
    assert EXPLANATION.summary == (
        "6 units, 4 of them kept by the sampled mask. Of 2 flips allowed, 2 were made: 1 dropped, 1 revived. The "
        "divergence from the label cat goes from 0.22 to 1.2. The prediction changes from cat (80.0 %) to <dog> (70.0 "
        "%)."
    )
    assert "stays cat (80.0 %), now cat (60.0 %)" in replace(EXPLANATION, after=[0.6, 0.4]).summary


def test_flips_are_counted_from_the_mask_that_they_start_from(x):
    found = explain(network(delta=0.25), x, term=VAdD(fresh=True))
    assert len(found.flips) <= found.budget == 3
    assert found.divergence[1] >= found.divergence[0]


def test_an_average_of_the_weights_does_not_move(x):
    model, term = network(), VAdD(target=EMA(0.5), search=Probe())
    Step(model, CrossEntropy() + term)(torch.rand(4, 1, 4, 4), torch.tensor([0, 1, 2, 0]))
    before = {key: value.clone() for key, value in term.target.state_dict().items()}
    with torch.no_grad():
        model[1].weight.add_(1.0)
    explain(model, x, term=term)
    assert all(torch.equal(value, before[key]) for key, value in term.target.state_dict().items())
