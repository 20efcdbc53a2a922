import pytest
import torch
from torch import nn

from advdrop.insertion import adversarial_layers
from advdrop.lab.models import autoencoder
from advdrop.masks import flip_budget
from halves import above, below


def test_parameters_by_hand():
    encoder, decoder = (784 + 1) * 256, (256 + 1) * 784
    assert sum(p.numel() for p in autoencoder().parameters()) == encoder + decoder == 402_448


def test_the_default_layer_is_the_papers():
    (layer,) = adversarial_layers(autoencoder())
    assert (layer.p, layer.delta) == (0.5, 0.3)
    assert flip_budget(layer.delta, 256) == 76


def test_it_computes_a_reconstruction():
    model = autoencoder(shape=(2, 3), hidden=5).eval()
    x = torch.randn(4, 2, 3)
    encoder, decoder = model[1], above(model)[1]
    h = (x.flatten(1) @ encoder.weight.T + encoder.bias).relu()
    torch.testing.assert_close(below(model)(x), h)
    torch.testing.assert_close(model(x), h @ decoder.weight.T + decoder.bias)
    assert model(x).min() < 0  # a linear decoder


def test_it_learns_to_reconstruct():
    torch.manual_seed(0)
    model, x = autoencoder(shape=(6,), hidden=32).eval(), torch.randn(16, 6)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    start = nn.functional.mse_loss(model(x), x).item()
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05 * start


def test_what_is_impossible_is_refused():
    with pytest.raises(TypeError, match="classes"):
        autoencoder(classes=10)
