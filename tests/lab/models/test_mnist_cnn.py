import pytest
import torch
from torch import nn

from advdrop.insertion import adversarial_layers
from advdrop.lab.models import mnist_cnn
from advdrop.masks import AdversarialDropout, flip_budget
from halves import above, below


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def by_hand(kernel, classes):
    area = kernel * kernel
    convolutions = (1 * area + 1) * 32 + (32 * area + 1) * 64 + (64 * area + 1) * 128
    return convolutions + (2048 + 1) * 625 + (625 + 1) * classes


@pytest.mark.parametrize(("kernel", "classes"), [(3, 10), (1, 10), (5, 4)])
def test_parameters_by_hand(kernel, classes):
    assert parameters(mnist_cnn(kernel=kernel, classes=classes)) == by_hand(kernel, classes)


def test_the_count_of_the_default():
    assert parameters(mnist_cnn()) == 320 + 18_496 + 73_856 + 1_280_625 + 6_260


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_shapes(kernel):
    model = mnist_cnn(kernel=kernel)
    x = torch.randn(2, 1, 28, 28)
    assert below(model)(x).shape == (2, 2048)
    assert model(x).shape == (2, 10)


def test_pooling_takes_28_to_14_7_and_4():
    sizes, x = [], torch.randn(1, 1, 28, 28)
    for module in below(mnist_cnn()):
        x = module(x)
        if isinstance(module, nn.MaxPool2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(32, 14, 14), (64, 7, 7), (128, 4, 4)]


def test_the_default_layer_is_the_papers():
    (layer,) = adversarial_layers(mnist_cnn())
    assert (layer.p, layer.delta) == (0.5, 0.005)
    assert flip_budget(layer.delta, 2048) == 10
    assert above(mnist_cnn())[0].p == 0.5


def test_a_layer_can_be_given():
    layer = AdversarialDropout(0.1, 0.2)
    assert adversarial_layers(mnist_cnn(layer)) == [layer]


def test_two_ordinary_dropouts_lie_below():
    assert [m.p for m in below(mnist_cnn()) if isinstance(m, nn.Dropout)] == [0.5, 0.5]


def test_pooling_and_relu_commute():
    """The deviation of the file: ReLU after pooling equals ReLU before it, as the table has it."""
    model = mnist_cnn().eval()
    x = torch.randn(3, 1, 28, 28)
    h = x
    for conv in (m for m in below(model) if isinstance(m, nn.Conv2d)):
        h = nn.functional.max_pool2d(conv(h).relu(), 2, ceil_mode=True)
    torch.testing.assert_close(below(model)(x), h.flatten(1))


@pytest.mark.parametrize("kernel", [0, 2, 4])
def test_an_even_kernel_is_refused(kernel):
    with pytest.raises(ValueError, match=f"kernel must be odd, got {kernel}"):
        mnist_cnn(kernel=kernel)


@pytest.mark.parametrize(
    ("shape", "sides"),
    [((1, 28, 28), (4, 4)), ((3, 32, 32), (4, 4)), ((1, 8, 8), (1, 1)), ((1, 9, 17), (2, 3)), ((2, 1, 1), (1, 1))],
)
def test_the_units_follow_from_the_shape(shape, sides):
    model = mnist_cnn(None, shape)
    assert above(model)[1].in_features == 128 * sides[0] * sides[1]
    assert model(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(("earlier", "units"), [(0, (2048,)), (1, (64, 7, 7)), (2, (32, 14, 14))])
def test_the_layer_changes_places_with_the_dropout_of_an_earlier_pooling(earlier, units):
    model = mnist_cnn(AdversarialDropout(0.3, 0.01), dropout=0.2, earlier=earlier)
    assert below(model)(torch.randn(2, 1, 28, 28)).shape == (2, *units)
    others = [m.p for m in model if isinstance(m, nn.Dropout) and not isinstance(m, AdversarialDropout)]
    assert others == ([0.2, 0.2] if earlier == 0 else [0.2, 0.3])
    assert list(model.state_dict()) == list(mnist_cnn().state_dict())


@pytest.mark.parametrize("earlier", [-1, 3, 0.5])
def test_there_are_three_poolings(earlier):
    with pytest.raises(ValueError, match=f"earlier must be 0, 1 or 2, because .* three poolings, got {earlier}"):
        mnist_cnn(earlier=earlier)
