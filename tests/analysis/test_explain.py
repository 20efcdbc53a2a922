"""What is explained is what the objective does."""

import pytest
import torch
from torch import nn

import advdrop
from advdrop import AdversarialDropout, FirstOrder, Split, VAdD, flip_mask, kl, qe


def network(p=0.5, delta=0.25, layers=1):
    torch.manual_seed(0)
    upper = [AdversarialDropout(p, delta) for _ in range(layers)]
    return Split(nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU()), nn.Sequential(*upper, nn.Linear(12, 3)))


@pytest.fixture
def x():
    return torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(1))


def test_masks_jacobian_and_probabilities_are_those_of_the_network(x):
    model = network().eval()
    found = advdrop.explain(model, x, seed=3)
    h, decoder = model.under(x[None]).detach(), model.upper[1]
    sampled, adversarial = torch.tensor([found.sampled]).float(), torch.tensor([found.adversarial]).float()
    clean = decoder(h * sampled * 2)
    ones = torch.ones_like(h, requires_grad=True)
    (jacobian,) = torch.autograd.grad(kl(clean.detach(), decoder(h * ones)).sum(), ones)
    torch.testing.assert_close(torch.tensor([found.jacobian]), jacobian)
    assert torch.equal(adversarial, flip_mask(sampled, jacobian, 3))
    after = decoder(h * adversarial * 2)
    torch.testing.assert_close(torch.tensor(found.whole), decoder(h)[0].softmax(0))
    torch.testing.assert_close(torch.tensor(found.before), clean[0].softmax(0))
    torch.testing.assert_close(torch.tensor(found.after), after[0].softmax(0))
    assert found.divergence[0] == pytest.approx(0.0, abs=1e-6)
    assert found.divergence[1] == pytest.approx(float(kl(clean, after).detach()), rel=1e-4)
    assert found.budget == 3


def test_the_same_seed_is_the_same_mask(x):
    model = network()
    assert advdrop.explain(model, x, seed=1) == advdrop.explain(model, x, seed=1)
    assert advdrop.explain(model, x, seed=1).sampled != advdrop.explain(model, x, seed=2).sampled


def test_the_mask_is_all_that_is_random(x):
    model = network()
    model.under.append(nn.Dropout(0.5))
    torch.manual_seed(0)
    first = advdrop.explain(model.train(), x)
    torch.manual_seed(1)
    assert advdrop.explain(model, x) == first


def test_the_label_is_the_target_where_nothing_is_dropped(x):
    """Against its own output the search would have nothing to go by."""
    model = network(p=0.0)
    found = advdrop.explain(model, x, 2, classes=["cat", "dog", "owl"])
    assert found.target == "the label owl"
    assert found.sampled == [1] * 12
    assert found.divergence[1] > found.divergence[0]
    assert advdrop.explain(network(), x, 2).target == "the network's own clean output"
    assert advdrop.explain(network(), x, 2, target="label").target == "the label 2"


def test_any_term_can_be_explained(x):
    term = VAdD(delta=0.5, divergence=qe, noise="shared", search=FirstOrder(order="smallest"))
    found = advdrop.explain(network(), x, term=term)
    assert found.budget == 6
    assert advdrop.explain(network(), x, delta=0.5).budget == 6


def test_a_row_of_a_table_has_no_image():
    model = Split(
        nn.Sequential(nn.Linear(5, 12), nn.ReLU()), nn.Sequential(AdversarialDropout(0.5, 0.3), nn.Linear(12, 2))
    )
    found = advdrop.explain(model, torch.rand(5))
    assert found.image == []
    assert "The image" not in found.svg()


def test_the_image_is_shown_over_its_own_range(x):
    found = advdrop.explain(network(), 3 * x - 1)
    flat = [value for line in found.image for value in line]
    assert (min(flat), max(flat), len(found.image), len(found.image[0])) == (0.0, 1.0, 4, 4)


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(x, training):
    model = network().train(training)
    before = [parameter.clone() for parameter in model.parameters()]
    advdrop.explain(model, x)
    assert all(module.training is training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("layers", [0, 2])
def test_a_network_without_one_layer_is_told(x, layers):
    with pytest.raises(ValueError, match=f"one AdversarialDropout layer, got {layers} in Split"):
        advdrop.explain(network(layers=layers), x)


def test_the_label_that_is_needed_is_asked_for(x):
    with pytest.raises(ValueError, match="needs the label"):
        advdrop.explain(network(), x, target="label")


def test_integers_are_told(x):
    with pytest.raises(TypeError, match="x"):
        advdrop.explain(network(), x.long())
