"""CatGAN and the GAN with feature matching: both sides against numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import CatGAN, DeepSupervision, FakeClass, Step, insert
from small import CLASSES, FEATURES, batch, gradients, only, run, seeded, values


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def entropy(p):
    return -(p * np.log(p)).sum(-1)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


@pytest.fixture
def maker():
    return nn.Linear(4, FEATURES)


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


@pytest.fixture
def fake(maker):
    """What the generator makes of the first draws of the generator of seed 0."""
    return maker(torch.empty(16, 4).normal_(generator=seeded())).double()


def outputs(model, x):
    return model(x).detach().numpy()


def test_catgan_is_formula_7(model, maker, rows, fake):
    real, made = (softmax(outputs(model, x)) for x in (rows["unlabeled"], fake))
    expected = entropy(real) - entropy(real.mean(0)) - entropy(made)
    np.testing.assert_allclose(values(model, CatGAN(maker, latent=4), rows).detach(), expected)


def test_the_generator_of_catgan_is_formula_8(model, maker, rows, fake):
    made = softmax(outputs(model, fake))
    found = values(model, CatGAN(maker, latent=4).opponent, rows)
    np.testing.assert_allclose(found.detach(), entropy(made) - entropy(made.mean(0)))


def test_the_class_of_generated_inputs_has_the_logit_zero(model, maker, rows, fake):
    real, made = (outputs(model, x) for x in (rows["unlabeled"], fake))
    # K + 1 classes: the probability of the last one, whose logit is 0.
    is_fake = [softmax(np.concatenate([x, np.zeros((16, 1))], axis=1))[:, -1] for x in (real, made)]
    expected = -0.5 * np.log(1 - is_fake[0]) - 0.5 * np.log(is_fake[1])
    np.testing.assert_allclose(values(model, FakeClass(maker, latent=4), rows).detach(), expected)


def test_feature_matching(model, maker, rows, fake):
    real, made = (model[:2](x).detach().numpy().mean(0) for x in (rows["unlabeled"], fake))
    found = values(model, FakeClass(maker, latent=4, features="1").opponent, rows)
    np.testing.assert_allclose(found.detach(), np.full(16, ((real - made) ** 2).mean()))


def test_features_in_half_precision_have_means_in_float32(maker, rows):
    """Rounded means would hide small differences between them."""
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).bfloat16()
    rows["unlabeled"] = rows["unlabeled"].bfloat16()
    made = maker(torch.empty(16, 4, dtype=torch.float32).normal_(generator=seeded())).bfloat16()
    real, fake = (model[:2](x).detach().float().numpy().mean(0) for x in (rows["unlabeled"], made))
    found = values(model, FakeClass(maker, latent=4, features="1").opponent, rows)
    np.testing.assert_allclose(found.detach(), np.full(16, ((real - fake) ** 2).mean()), rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_generator_of_another_precision(model, maker, rows, dtype):
    """It gets numbers of its own precision, and the network gets images of that of its inputs."""
    found = values(model, CatGAN(maker.to(dtype), latent=4), rows)
    torch.testing.assert_close(found, values(model, CatGAN(maker.float(), latent=4), rows), rtol=0.1, atol=0.1)


def test_features_are_not_those_of_other_terms(model, maker, rows):
    term = FakeClass(maker, 4, features="0").opponent
    heads = DeepSupervision.of(model, rows["unlabeled"], CLASSES, ("1",))
    heads.heads.to(torch.float64)
    both = only(batch(dtype=torch.float64), "x", "y", "unlabeled")
    alone, together = (Step(model, found)(**both, generator=seeded()) for found in (term, term + heads))
    torch.testing.assert_close(together.terms["feature_matching"], alone.terms["feature_matching"])


@pytest.mark.parametrize("make", [CatGAN, lambda *options, **more: FakeClass(*options, features="1", **more)])
def test_each_player_has_gradients_of_its_own(make, model, maker, rows):
    term = make(maker, latent=4)
    loss = run(model, term, rows).loss
    assert all(gradient.abs().max() > 0 for gradient in gradients(model, loss))
    assert all(gradient.abs().max() == 0 for gradient in gradients(maker, loss))
    rival = Step(model, term.opponent, updating=())
    assert list(rival.trained.parameters()) == list(maker.parameters())
    assert all(gradient.abs().max() > 0 for gradient in gradients(maker, rival(**rows, generator=seeded()).loss))


def test_a_checkpoint_of_the_term_holds_the_generator(model, maker):
    term, other = CatGAN(maker, latent=4), CatGAN(nn.Linear(4, FEATURES), latent=4)
    other.load_state_dict(term.state_dict())
    assert torch.equal(other.generator.weight, maker.weight)
    with pytest.raises(ValueError, match="latent"):
        CatGAN(maker, latent=0)


def test_the_features_of_an_inserted_layer_have_the_name_of_the_module_before_it(model, maker, rows):
    insert(model, after="1")
    with pytest.raises(ValueError, match=r"no module AdversarialDropout; there are 0, 1, 2; a layer that insert\(\)"):
        run(model, FakeClass(maker, latent=4).opponent, only(rows, "unlabeled"))
    assert run(model, FakeClass(maker, latent=4, features="1").opponent, only(rows, "unlabeled")).loss > 0


def test_a_generator_is_a_module():
    with pytest.raises(TypeError, match="generator must be a module, got"):
        CatGAN(lambda z: z)
