import pytest
import torch
from torch import nn

from advdrop import Step, VAdD
from advdrop.lab.models import resnet18
from advdrop.lab.models.resnet18 import ResidualBlock
from advdrop.masks import AdversarialDropout
from advdrop.objectives import CrossEntropy
from halves import above, below

STAGES = (64, 128, 256, 512)


def parameters(filters, kernel, channels=3, classes=10):
    """Of the convolutions, of the norms (γ and β) and of the classifier, by hand."""
    first, last = filters[0], filters[-1]
    convolutions = channels * first * kernel**2
    norms = first
    for before, now in zip((first, *filters), filters, strict=False):
        convolutions += 9 * (before * now + 3 * now * now) + (before * now if before != now else 0)
        norms += 4 * now + (now if before != now else 0)
    return convolutions + 2 * norms + (last + 1) * classes


@pytest.mark.parametrize(("side", "kernel"), [(64, 3), (65, 7)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_parameters_by_hand(side, kernel, norm):
    with torch.device("meta"):
        model = resnet18(None, (3, side, side), 10, norm=norm)
    assert sum(p.numel() for p in model.parameters()) == parameters(STAGES, kernel)


def test_the_original_for_imagenet_has_11_689_512_parameters():  # a number that is known everywhere
    with torch.device("meta"):
        model = resnet18(None, (3, 224, 224), 1000)
    assert sum(p.numel() for p in model.parameters()) == parameters(STAGES, 7, classes=1000) == 11_689_512


def test_the_width_is_a_factor_on_the_filters():
    model = resnet18(None, (1, 16, 16), 3, width=0.25)
    assert sum(p.numel() for p in model.parameters()) == parameters((16, 32, 64, 128), 3, channels=1, classes=3)
    assert above(model)[1].in_features == 128
    assert above(resnet18(None, (1, 16, 16), 3, width=0.001))[1].in_features == 8


@pytest.mark.parametrize(
    ("side", "sizes"),
    [(40, [40, 20, 10, 5, 1]), (64, [32, 16, 8, 4, 1]), (224, [112, 56, 28, 14, 7, 1]), (13, [13, 7, 4, 2, 1])],
)
def test_the_sizes_of_the_maps(side, sizes):
    x, found = torch.randn(1, 3, side, side), []
    for module in below(resnet18(None, (3, side, side), 10, width=0.01).eval()):
        x = module(x)
        if x.dim() == 4 and (not found or found[-1] != x.shape[2]):
            found.append(x.shape[2])
    assert found == sizes


def test_a_block_starts_as_its_shortcut():
    block = resnet18(None, (3, 16, 16), 10, width=0.1)[4]
    assert isinstance(block, ResidualBlock)
    x = torch.randn(2, 8, 5, 5)
    assert torch.equal(block.eval()(x), x.relu())


def test_a_block_is_its_formula():
    torch.manual_seed(0)
    block = ResidualBlock(4, 8, "batch", stride=2)
    nn.init.uniform_(block.norm2.weight)
    x = torch.randn(3, 4, 6, 6)
    h = block.norm2(block.conv2(block.norm1(block.conv1(x)).relu()))
    assert torch.equal(block(x), (block.shortcut[1](block.shortcut[0](x)) + h).relu())
    assert block(x).shape == (3, 8, 3, 3)


def trained_once(norm):
    """A network that is not at its start, where all blocks are their shortcuts."""
    torch.manual_seed(0)
    model = resnet18(AdversarialDropout(0.0), (1, 16, 16), 3, norm=norm, width=0.1)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm | nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
    return model.train()


def test_with_group_norm_no_image_depends_on_the_others():
    model, x = trained_once("group"), torch.randn(5, 1, 16, 16)
    torch.testing.assert_close(model(x)[:2], model(x[:2]))
    other = trained_once("batch")
    assert (other(x)[:2] - other(x[:2])).abs().max() > 0.01


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_it_learns(norm):
    torch.manual_seed(0)
    model = resnet18(AdversarialDropout(0.5, delta=0.1), (1, 8, 8), 2, norm=norm, width=0.1)
    y = torch.arange(16) % 2
    x = torch.randn(16, 1, 8, 8) + 2 * y.view(-1, 1, 1, 1)
    step, adam = Step(model, CrossEntropy() + VAdD()), torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(12):
        adam.zero_grad()
        out = step(x, y, unlabeled=x)
        out.loss.backward()
        adam.step()
        losses.append(out.loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_small_images_and_unknown_norms_are_refused():
    with pytest.raises(ValueError, match=r"resnet18 needs images .* of at least 8 x 8 pixels"):
        resnet18(None, (3, 7, 9), 10)
    with pytest.raises(ValueError, match="norm must be"):
        resnet18(None, (3, 8, 8), 10, norm="layer")
