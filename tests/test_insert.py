"""Layers in networks that know nothing of them."""

import copy
import io
import pickle
import re
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from advdrop import AT, VAT, AdversarialDropout, CrossEntropy, Step, VAdD, insert, places, remove
from advdrop.insertion import adversarial_layers, inserted_layers
from advdrop.masks import mask_shape


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

    version = 3

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

    def forward(self, x, scale=1.0, *, shift=0.0):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return scale * self.fc(torch.flatten(self.avgpool(x), 1)) + shift


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
LABELS = torch.tensor([0, 1, 2, 0])
CASES = {
    "resnet, pooled": (ResNet18, IMAGES, {"after": "avgpool"}, None, (32, 1, 1)),
    "resnet, a forked graph": (ResNet18, IMAGES, {"after": "layer3.0.bn2"}, None, (16, 2, 2)),
    "resnet, channels": (ResNet18, IMAGES, {"after": "layer2", "granularity": "channel"}, None, (8, 1, 1)),
    "transformer": (Transformer, IMAGES, {"after": "norm"}, None, (17, 16)),
    "transformer, features": (
        Transformer,
        IMAGES,
        {"after": "blocks.0", "granularity": "feature"},
        lambda output: output["logits"],
        (1, 16),
    ),
    "lstm, shared over time": (
        Reader,
        TOKENS,
        {"after": "lstm", "part": 0, "granularity": "feature"},
        0,
        (1, 12),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def built(case):
    torch.manual_seed(0)
    kind, x, options, logits, shape = case
    return kind(), x, {"delta": 0.2, **options}, logits, shape


def outputs(output):
    """All tensors that a network returns."""
    if isinstance(output, torch.Tensor):
        return [output]
    return list(output.values()) if isinstance(output, dict) else list(output)


def equal(one, other):
    return all(torch.equal(*pair) for pair in zip(outputs(one), outputs(other), strict=True))


@every_case
def test_a_step_flips_units_and_gives_every_parameter_a_gradient(case):
    network, x, options, logits, shape = built(case)
    step = Step(insert(network, **options), CrossEntropy() + VAdD(), logits=logits)
    loss = step(x, LABELS, generator=torch.Generator().manual_seed(0), measure=True)
    loss.loss.backward()
    assert 0 < loss.measures["vadd_kl/flips"] <= int(0.2 * torch.Size(shape).numel())
    assert loss.terms["vadd_kl"] > 0
    assert all(parameter.grad is not None for parameter in network.parameters())


@every_case
def test_the_network_stays_what_it_was(case):
    network, x, options, _, _ = built(case)
    network.eval()
    text, keys, kind, before = str(network), list(network.state_dict()), type(network), network(x)
    modules = [name for name, _ in network.named_modules()]
    assert insert(network, **options) is network
    assert len(adversarial_layers(network)) == 1
    for _ in range(2):  # the second time there is nothing left to remove
        assert (str(network), list(network.state_dict()), type(network)) == (text, keys, kind)
        assert [name for name, _ in network.named_modules()] == modules
        assert equal(network(x), before)
        assert remove(network) is network
        assert not adversarial_layers(network)
    assert not any(module._forward_hooks for module in network.modules())


def test_arguments_and_attributes_stay():
    network = ResNet18().eval()
    expected = network(IMAGES, 2.0, shift=3.0)
    insert(network, after="avgpool")
    assert torch.equal(network(IMAGES, 2.0, shift=3.0), expected)
    assert network.version == 3
    assert network.fc.out_features == 5
    assert isinstance(network.layer1[0], Block)


@every_case
def test_in_training_it_is_dropout(case):
    network, x, options, _, _ = built(case)
    insert(network, **{**options, "p": 0.0}).train()
    torch.manual_seed(1)
    expected = network(x)
    remove(network)
    torch.manual_seed(1)
    assert equal(network(x), expected)
    insert(network, **{**options, "p": 1.0})
    torch.manual_seed(1)
    assert not equal(network(x), expected)


@every_case
def test_checkpoints_fit_before_meanwhile_and_after(case):
    network, x, options, _, _ = built(case)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    before = copy.deepcopy(network.state_dict())
    insert(network, **options)
    other.load_state_dict(network.state_dict())
    assert equal(other.eval()(x), network.eval()(x))
    network.load_state_dict(before)
    insert(other, **options).load_state_dict(network.state_dict())
    remove(network).load_state_dict(other.state_dict())


@every_case
def test_the_places_are_found_with_their_units(case):
    network, x, options, _, shape = built(case)
    for inserted in (False, True):
        place = {place.name: place for place in places(network, x)}[options["after"]]
        assert place.calls == 1
        assert place.part == options.get("part")
        assert mask_shape((4, *place.shape), options.get("granularity", "unit"))[1:] == shape
        assert all(module.training for module in network.modules())
        assert sum(len(module._forward_hooks) for module in network.modules()) == inserted
        if not inserted:
            insert(network, **options)


def stack():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_several_layers_at_once():
    network = insert(stack(), after=["1", "3"], delta=0.25)
    assert len(adversarial_layers(network)) == 2
    loss = Step(network, VAdD())(ROWS, torch.zeros(3).long(), measure=True)
    assert 2 < loss.measures["vadd_kl/flips"] <= 4
    assert not adversarial_layers(remove(network))


def test_a_place_inside_another_one():
    network = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))
    insert(insert(network, after="0"), after="0.1", delta=0.25)
    order = []
    for layer in adversarial_layers(network):
        layer.register_forward_hook(lambda layer, given, output: order.append(layer.delta))
    network(ROWS)
    assert order == [0.25, 0.05]
    assert Step(network, VAdD(noise="shared"))(ROWS, torch.zeros(3).long(), measure=True).measures["vadd_kl/flips"] > 0


def test_a_module_with_two_names_has_one_layer():
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[1] = network[0]
    insert(network, after="1")
    assert len(adversarial_layers(network)) == 1
    with pytest.raises(ValueError, match="already"):
        insert(network, after="0")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu, self.first, self.second = nn.ReLU(), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(self.relu(self.first(self.relu(x))))


def test_a_module_that_runs_twice_has_a_mask_for_each_run():
    network = Twice()
    assert "relu: ReLU, 8 units (8,), runs 2 times" in [str(place) for place in places(network, ROWS)]
    step = Step(insert(network, after="relu", delta=0.5), VAdD())
    assert step(ROWS, torch.zeros(3).long(), measure=True).measures["vadd_kl/flips"] > 2


def test_the_mode_of_the_module_counts():
    network = insert(stack(), after=["1", "3"], p=1.0)
    one, other = adversarial_layers(network)
    network[1].eval()
    network(ROWS)
    assert (one.training, other.training) == (True, True)  # the first did not run
    network[1].train()
    network.eval()
    assert network(ROWS).std(0).min() > 0
    network.train()
    assert network(ROWS).std(0).max() == 0
    assert insert(stack().eval(), after="1")[1]._forward_hooks["advdrop"].layer.training is False


# Parts.

Pair = namedtuple("Pair", "units rest")


class Part(nn.Module):
    def __init__(self, pack):
        super().__init__()
        self.pack = pack

    def forward(self, x):
        return self.pack(x)


def model_output(x):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=x, hidden_states=(x,))


PARTS = {
    "tuple": (lambda x: (x, 1), 0),
    "tuple, last": (lambda x: (1, 2, x), 2),
    "from the end": (lambda x: (1, 2, x), -1),
    "list": (lambda x: [1, x], 1),
    "named tuple": (lambda x: Pair(x, 1), 0),
    "named tuple, second": (lambda x: Pair(1, x), 1),
    "torch's named tuple": (lambda x: torch.max(x, dim=0), 0),
    "dict": (lambda x: {"a": 1, "b": x}, "b"),
    "model output": (model_output, "last_hidden_state"),
    "model output by number": (model_output, 0),
}


@pytest.mark.parametrize(("pack", "part"), PARTS.values(), ids=PARTS)
def test_only_the_part_is_changed(pack, part):
    network = nn.Sequential(Part(pack))
    x = torch.ones(3, 4)
    expected = network(x)
    insert(network, after="0", part=part, p=1.0)
    output = network(x)
    assert type(output) is type(expected)
    assert len(output) == len(expected)
    assert (output[part] == 0).all()
    assert (x == 1).all()
    keys = output.keys() if hasattr(output, "keys") else range(len(output))
    rest = [key for key in keys if output[key] is not output[part]]
    assert len(rest) == len(output) - 1
    torch.testing.assert_close([output[key] for key in rest], [expected[key] for key in rest])


@dataclass(frozen=True)
class Fields:
    units: torch.Tensor
    rest: int = 1


@pytest.mark.parametrize("pack", [lambda x: Pair(x, 1), Fields, lambda x: SimpleNamespace(units=x, rest=1)])
def test_parts_by_the_name_of_a_field(pack):
    network = nn.Sequential(Part(pack))
    (place,) = places(network, ROWS)
    assert place.part in (0, "units")
    for part in {"units", place.part}:
        output = insert(network, after="0", part=part, p=1.0)(ROWS)
        assert type(output) is type(pack(ROWS))
        assert (output.units == 0).all()
        assert output.rest == 1
        remove(network)


@pytest.mark.parametrize(
    ("pack", "part", "message"),
    [
        (lambda x: (x, 1), None, "the output of 0, a tuple, is not a tensor; say which part"),
        (lambda x: (x, 1), 1, "part 1 of the output of 0, a tuple, is not a tensor"),
        (lambda x: (x, 1), 2, "part 2 of the output of 0, a tuple, is not a tensor"),
        (lambda x: {"a": x}, "b", "part 'b' of the output of 0, a dict, is not a tensor"),
        (lambda x: {"a": x}, 0, "part 0 of the output of 0, a dict, is not a tensor"),
        (lambda x: (x, 1), "a", "part 'a' of the output of 0, a tuple, is not a tensor"),
        (lambda x: x, 0, "the output of 0 is a tensor and has no parts; leave out part=0"),
    ],
)
def test_parts_that_are_no_units_are_told(pack, part, message):
    network = insert(nn.Sequential(Part(pack)), after="0", part=part)
    with pytest.raises(TypeError, match=message):
        network(ROWS)


# Copies and other forms.


@every_case
def test_copies_have_layers_of_their_own(case):
    network, x, options, logits, _ = built(case)
    insert(network, **options)
    saved = io.BytesIO()
    torch.save(network, saved)
    saved.seek(0)
    for twin in (
        copy.deepcopy(network),
        pickle.loads(pickle.dumps(network)),
        torch.load(saved, weights_only=False),
    ):
        (layer,), (own,) = adversarial_layers(twin), adversarial_layers(network)
        assert layer is not own
        assert layer.extra_repr() == own.extra_repr()
        loss = Step(twin, VAdD(noise="shared"), logits=logits)(x, LABELS, measure=True)
        assert loss.measures["vadd_kl/flips"] > 0
        assert not adversarial_layers(remove(twin))
        assert adversarial_layers(network) == [own]


def test_hooks_of_another_process_do_not_take_its_place(monkeypatch):
    network = pickle.loads(pickle.dumps(insert(stack(), after=["1", "3"])))
    monkeypatch.setattr(RemovableHandle, "next_id", 0)  # torch numbers hooks from 0 in every process
    hooks = [module.register_forward_hook(lambda *_: None) for module in network.modules()]
    places(network, ROWS)
    for hook in hooks:
        hook.remove()
    assert len(adversarial_layers(network)) == 2


def test_other_hooks_stay():
    network, calls = stack(), []
    network[1].register_forward_hook(lambda *_: calls.append("before"))
    insert(network, after="1", p=1.0)
    network[1].register_forward_hook(lambda module, given, output: calls.append(output.abs().sum().item()))
    network(ROWS)
    assert calls == ["before", 0.0]
    remove(network)
    network(ROWS)
    assert calls[2] == "before"
    assert calls[3] > 0


def graph(network, form, x):
    if form == "trace":
        return re.sub(r"___torch_mangle_\d+\.", "", str(torch.jit.trace(network, x).inlined_graph))
    return str(torch.export.export(network, (x,)).graph)


@pytest.mark.parametrize("form", ["trace", "export"])
@pytest.mark.parametrize("name", ["resnet, pooled", "lstm, shared over time"])
@pytest.mark.filterwarnings("ignore")
def test_an_exported_network_has_no_trace_of_the_layer(form, name):
    network, x, options, _, _ = built(CASES[name])
    network.eval()
    expected = graph(network, form, x)
    assert graph(insert(network, **options), form, x) == expected


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_network_needs_no_layer():
    network = insert(stack(), after="1")
    with pytest.raises(RuntimeError, match=r"call advdrop.remove\(network\) first"):
        torch.jit.script(network)
    assert torch.jit.script(remove(network))(ROWS).shape == (3, 2)


# Mistakes.


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("avgpol", r"no module 'avgpol' \(did you mean avgpool.*\?\); advdrop.places"),
        ("layer3.0.bn", r"did you mean layer3.0.bn1 or layer3.0.bn2 or "),
        ("", "no module ''"),
        ([], "must name a module"),
        (["avgpool", "zzzz"], r"no module 'zzzz'; advdrop.places"),
    ],
)
def test_names_that_are_none_are_told_and_nothing_is_changed(after, message):
    network = ResNet18()
    with pytest.raises(ValueError, match=message):
        insert(network, after=after)
    assert not adversarial_layers(network)


@pytest.mark.parametrize("after", [0, [0], ["0", 1], nn.Linear(2, 2), {"0": 0.5}])
def test_what_is_no_name_is_told(after):
    with pytest.raises(TypeError, match=r"after must be the name of a module.*got .*; '0' is a name, 0 is not"):
        insert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), after=after)


@pytest.mark.parametrize("after", ["avgpool", ["fc", "avgpool"], ["layer1", "layer1"]])
def test_two_layers_at_one_place_are_refused(after):
    network = insert(ResNet18(), after="avgpool")
    with pytest.raises(ValueError, match="already"):
        insert(network, after=after)
    assert len(inserted_layers(network)) == 1
    assert len(inserted_layers(network.avgpool, inside=False)) == 1
    assert not inserted_layers(network, inside=False)


def test_a_layer_behind_a_layer_is_refused():
    network = nn.Sequential(nn.Linear(4, 4), AdversarialDropout())
    with pytest.raises(ValueError, match="there is an AdversarialDropout layer at '1' already"):
        insert(network, after="1")
    assert len(adversarial_layers(insert(network, after="0"))) == 2


@pytest.mark.parametrize("term", [AT(epsilon=0.1), VAT(epsilon=0.1)], ids=["at", "vat"])
def test_tokens_cannot_be_moved(term):
    step = Step(insert(Reader(), after="lstm", part=0), term, logits=0)
    with pytest.raises(TypeError, match="a layer after the embedding"):
        step(TOKENS, LABELS)


def test_a_layer_on_tokens_is_told():
    network = nn.Sequential(nn.Identity(), nn.Embedding(20, 8), nn.Flatten(), nn.Linear(56, 2))
    with pytest.raises(TypeError, match="floating point"):
        Step(insert(network, after="0"), VAdD())(TOKENS, torch.tensor([0, 1, 1, 0]))


# Hugging Face.


def classifier():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    widths = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=8, num_labels=2, **widths))


WORDS = {word: number for number, word in enumerate(["[pad]", "a", "good", "bad", "film", "story", "the", "was"])}
TEXTS = ["the film was good", "the story was bad", "a good story [pad]", "a bad film [pad]"]


def test_a_hugging_face_classifier_on_text_made_here():
    """Built from a configuration, without weights: words are numbered, and class 1 has the word 'good'."""
    tokens = torch.tensor([[WORDS[word] for word in text.split()] for text in TEXTS])
    inputs, y = {"input_ids": tokens, "attention_mask": (tokens != 0).long()}, torch.tensor([1, 0, 1, 0])
    network = classifier()
    found = {place.name: place for place in places(network, **inputs)}
    assert found["bert.embeddings"].shape == (4, 16)
    insert(network, after="bert.embeddings", p=0.1, delta=0.1, granularity="feature").train()
    step, optimizer = Step(network, CrossEntropy() + VAdD()), torch.optim.Adam(network.parameters(), lr=3e-3)
    masks = torch.Generator().manual_seed(0)
    first = step(inputs, y, unlabeled=inputs, generator=masks, measure=True)
    assert first.measures["vadd_kl/flips"] == 1.0
    for _ in range(40):
        optimizer.zero_grad()
        loss = step(inputs, y, unlabeled=inputs, generator=masks)
        loss.loss.backward()
        optimizer.step()
    assert loss.terms["cross_entropy"] < 0.3 * first.terms["cross_entropy"]
    assert remove(network).eval()(**inputs).logits.argmax(1).tolist() == y.tolist()


def test_a_hugging_face_network_is_saved_as_if_there_were_no_layer(tmp_path):
    from transformers import BertForSequenceClassification

    network = classifier()
    config = network.config.to_dict()
    insert(network, after="bert.encoder.layer.0", delta=0.1).eval()
    assert network.config.to_dict() == config
    network.save_pretrained(tmp_path)
    loaded = BertForSequenceClassification.from_pretrained(tmp_path).eval()
    tokens = torch.ones(2, 3).long()
    assert torch.equal(loaded(tokens).logits, network(tokens).logits)
    assert not adversarial_layers(loaded)
    assert insert(loaded, after="bert.encoder.layer.0").load_state_dict(network.state_dict())


class Attentive(nn.Module):
    """Torch's attention uses the weights of its output layer and does not call it."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.attention(x, x, x)[0].mean(1))


def test_a_layer_that_does_not_run_beside_others_that_do_is_told_once():
    network, x, y = Attentive(), torch.randn(4, 5, 8), torch.tensor([0, 1, 2, 0])
    insert(network, after="attention", part=0, delta=0.1)
    Step(network, CrossEntropy() + VAdD())(x, y)  # a warning would be an error
    insert(network, after="attention.out_proj", delta=0.1)
    step = Step(network, CrossEntropy() + VAdD())
    with pytest.warns(UserWarning, match=r"ran after 'attention.out_proj' in the first step.*advdrop\.places"):
        step(x, y)
    step(x, y)
