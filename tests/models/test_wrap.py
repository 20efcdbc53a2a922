"""Layers in networks that know nothing of them."""

import copy
import pickle

import pytest
import torch
from torch import nn

import advdrop
from advdrop import Batch, CrossEntropy, VAdD, places, wrap
from advdrop.models.split import adversarial_layers, cut


class Block(nn.Module):
    """A residual block."""

    def __init__(self, inner, outer, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        plain = stride == 1 and inner == outer
        self.downsample = (
            None if plain else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + identity)


class ResNet18(nn.Module):
    """Eighteen layers, narrow."""

    def __init__(self, classes=5, width=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, 2 * width, 4 * width, 8 * width]
        for number, (inner, outer) in enumerate(zip([width, *widths], widths, strict=False), start=1):
            stride = 1 if number == 1 else 2
            setattr(self, f"layer{number}", nn.Sequential(Block(inner, outer, stride), Block(outer, outer)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Transformer(nn.Module):
    """A small Vision Transformer: patches, a class token, two blocks."""

    def __init__(self, classes=5, width=16):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x)[:, 0]), "features": x}


class Reader(nn.Module):
    """An LSTM over tokens."""

    def __init__(self, classes=3, width=12):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        output, _ = self.lstm(self.embedding(tokens))
        return self.head(output[:, -1]), output


IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(0, 20, (4, 7), generator=torch.Generator().manual_seed(0))
CASES = {
    "resnet, pooled": (ResNet18, IMAGES, {"after": "avgpool", "delta": 0.2}, (32, 1, 1)),
    "resnet, a forked graph": (ResNet18, IMAGES, {"after": "layer3.0.bn2", "delta": 0.2}, (16, 2, 2)),
    "resnet, channels": (ResNet18, IMAGES, {"after": "layer2", "delta": 0.2, "granularity": "channel"}, (8, 1, 1)),
    "transformer": (Transformer, IMAGES, {"after": "norm", "delta": 0.2, "logits": "logits"}, (17, 16)),
    "transformer, features": (
        Transformer,
        IMAGES,
        {"after": "blocks.0", "delta": 0.2, "logits": lambda output: output["logits"], "granularity": "feature"},
        (1, 16),
    ),
    "lstm, shared over time": (
        Reader,
        TOKENS,
        {"after": "lstm", "delta": 0.2, "part": 0, "logits": 0, "granularity": "feature"},
        (1, 12),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def built(case):
    torch.manual_seed(0)
    kind, x, options, shape = case
    return kind(), x, options, shape


def logits_of(output):
    return output if isinstance(output, torch.Tensor) else output[0] if isinstance(output, tuple) else output["logits"]


@every_case
def test_a_step_flips_units_and_gives_every_parameter_a_gradient(case):
    model, x, options, shape = built(case)
    model.train()
    wrapped = wrap(model, **options)
    objective = CrossEntropy() + VAdD()
    loss = objective(
        wrapped, Batch(x, torch.tensor([0, 1, 2, 0])), generator=torch.Generator().manual_seed(0), measure=True
    )
    loss.total.backward()
    units = torch.Size(shape).numel()
    assert 0 < loss.measures["vadd_kl/flips"] <= int(0.2 * units)
    assert loss.terms["vadd_kl"] > 0
    assert all(parameter.grad is not None for parameter in model.parameters())


@every_case
def test_in_evaluation_it_is_the_network_it_was(case):
    model, x, options, _ = built(case)
    model.eval()
    before = logits_of(model(x))
    wrapped = wrap(model, **options)
    torch.testing.assert_close(wrapped(x), before)
    assert not wrapped.training


@every_case
def test_the_layer_comes_out_again(case):
    model, _, options, _ = built(case)
    text, keys = str(model), list(model.state_dict())
    wrapped = wrap(model, **options)
    assert len(adversarial_layers(model)) == 1
    assert sorted(model.state_dict()) == sorted(keys)
    assert wrapped.unwrap() is model
    assert str(model) == text
    assert list(model.state_dict()) == keys
    assert not adversarial_layers(model)
    assert wrapped.unwrap() is model  # a second time there is nothing left to do


@every_case
def test_checkpoints_fit_before_meanwhile_and_after(case):
    model, x, options, _ = built(case)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    wrapped = wrap(model, **options)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits_of(other.eval()(x)), wrapped.eval()(x))
    model.load_state_dict(other.state_dict())
    again = wrap(other, **options)
    again.load_state_dict(wrapped.state_dict())


@every_case
def test_the_places_are_found_with_their_units(case):
    model, x, options, shape = built(case)
    model.train()
    found = {place.name: place for place in places(model, x)}
    place = found[options["after"]]
    assert place.calls == 1
    assert place.part == options.get("part")
    expected = advdrop.masks.mask_shape((4, *place.shape), options.get("granularity", "unit"))[1:]
    assert expected == shape
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_several_layers_at_once():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    wrapped = wrap(model, after=["1", "3"], delta=0.25)
    assert len(adversarial_layers(wrapped)) == 2
    loss = VAdD()(wrapped, Batch(torch.randn(3, 4), torch.zeros(3, dtype=torch.int64)), measure=True)
    assert loss.measures["vadd_kl/flips"] > 0
    assert str(wrapped.unwrap()) == str(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    )


def test_a_module_that_has_two_names_gets_a_layer_behind_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1] = model[0]
    wrapped = wrap(model, after="1")
    assert not adversarial_layers(model[0])
    assert wrapped(torch.zeros(1, 4)).shape == (1, 4)
    assert wrapped.unwrap()[1] is model[0]


def test_a_module_that_runs_twice_is_counted_and_told():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu, self.first, self.second = nn.ReLU(), nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second(self.relu(self.first(self.relu(x))))

    model = Twice()
    assert "relu: ReLU, 8 units (8,), runs 2 times" in [str(place) for place in places(model, torch.zeros(1, 4))]
    with pytest.raises(ValueError, match="runs more than once in a pass"):
        VAdD()(wrap(model, after="relu"), Batch(torch.randn(2, 4), torch.tensor([0, 1])))


def test_a_wrapped_network_can_be_copied_and_pickled():
    model, x, options, _ = built(CASES["resnet, pooled"])
    wrapped = wrap(model, **options).eval()
    for again in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        torch.testing.assert_close(again(x), wrapped(x))
        assert not adversarial_layers(again.unwrap())


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("avgpol", r"no module 'avgpol' \(did you mean avgpool\?\); advdrop.places"),
        ("layer3.0.bn", r"did you mean layer3.0.bn1\?"),
        ("", "no module ''"),
        ([], "must name a module"),
        (["avgpool", "zzzz"], r"no module 'zzzz'; advdrop.places"),
    ],
)
def test_names_that_are_none_are_told_and_nothing_is_changed(after, message):
    model = ResNet18()
    with pytest.raises(ValueError, match=message):
        wrap(model, after=after)
    assert not adversarial_layers(model)


def test_two_layers_at_one_place_are_refused():
    model = ResNet18()
    wrap(model, after="avgpool")
    with pytest.raises(ValueError, match="already"):
        wrap(model, after="avgpool")


@pytest.mark.parametrize("term", [advdrop.AT(epsilon=0.1), advdrop.VAT(epsilon=0.1)], ids=["at", "vat"])
def test_tokens_cannot_be_moved(term):
    model = wrap(Reader(), after="lstm", part=0, logits=0)
    with pytest.raises(TypeError, match="a layer behind the embedding"):
        term(model, Batch(TOKENS, torch.tensor([0, 1, 2, 0])))


def test_a_layer_on_tokens_is_told():
    model = nn.Sequential(nn.Identity(), nn.Embedding(20, 8), nn.Flatten(), nn.Linear(56, 2))
    with pytest.raises(TypeError, match="floating point"):
        VAdD()(wrap(model, after="0"), Batch(TOKENS, torch.tensor([0, 1, 1, 0])))


def test_a_hugging_face_classifier_on_text_made_here():
    """Built from a configuration, without weights: words are numbered, and class 1 has the word 'good'."""
    from transformers import BertConfig, BertForSequenceClassification

    words = {word: number for number, word in enumerate(["[pad]", "a", "good", "bad", "film", "story", "the", "was"])}
    texts = ["the film was good", "the story was bad", "a good story [pad]", "a bad film [pad]"]
    tokens = torch.tensor([[words[word] for word in text.split()] for text in texts])
    y = torch.tensor([1, 0, 1, 0])
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    model = BertForSequenceClassification(config)
    found = {place.name: place for place in places(model, tokens)}
    assert found["bert.embeddings"].shape == (4, 16)
    wrapped = wrap(model, after="bert.embeddings", p=0.1, delta=0.1, granularity="feature", logits="logits").train()
    objective = CrossEntropy() + VAdD()
    optimiser = torch.optim.Adam(wrapped.parameters(), lr=3e-3)
    masks = torch.Generator().manual_seed(0)
    torch.testing.assert_close(cut(wrapped.eval())(tokens), wrapped(tokens))
    first = objective(wrapped.train(), Batch(tokens, y, u=tokens), generator=masks, measure=True)
    assert first.measures["vadd_kl/flips"] == 1.0
    for _ in range(40):
        optimiser.zero_grad()
        loss = objective(wrapped, Batch(tokens, y, u=tokens), generator=masks)
        loss.total.backward()
        optimiser.step()
    assert loss.terms["cross_entropy"] < 0.3 * first.terms["cross_entropy"]
    assert wrapped.unwrap().eval()(tokens).logits.argmax(1).tolist() == y.tolist()
