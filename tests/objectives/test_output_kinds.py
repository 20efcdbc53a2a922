"""Tokens, pixels, many labels, values, soft labels and class weights: every kind of output, every method."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advdrop import (
    AT,
    EMA,
    VAT,
    AdversarialDropout,
    BinaryCrossEntropy,
    CatGAN,
    CrossEntropy,
    EntropyMinimization,
    FakeClass,
    FraternalDropout,
    Gamma,
    MeanTeacher,
    MutualExclusivity,
    PiModel,
    RDrop,
    SAdD,
    SquaredError,
    Step,
    TemporalEnsembling,
    TransformationStability,
    VAdD,
    bernoulli_kl,
    cross_entropy,
    kl,
    mse,
    qe,
    reverse_kl,
)
from small import gradients, quiet, run, seeded

WORDS, WIDTH, CLASSES = 11, 16, 3
IGNORED = -100


class Tagger(nn.Module):
    """Token classification, (B, T, C). Each token is judged by itself; the units are shared by all tokens of a row."""

    def __init__(self, p=0.5, classes=CLASSES):
        super().__init__()
        self.embeddings, self.noise, self.layer = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.0), None
        self.layer = AdversarialDropout(p, delta=0.3, granularity="feature")
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids, attention_mask=None):
        return {"logits": self.head(self.layer(torch.tanh(self.embeddings(input_ids))))}


class Segmenter(nn.Module):
    """Segmentation, (B, C, H, W)."""

    def __init__(self, p=0.5, outputs=CLASSES):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), AdversarialDropout(p, 0.2, granularity="channel")
        )
        self.head = nn.Conv2d(6, outputs, 1)

    def forward(self, x):
        return self.head(self.body(x))


def text(rows=4, length=5):
    draw = seeded(3)
    ids, y = (
        torch.randint(WORDS, (rows, length), generator=draw),
        torch.randint(CLASSES, (rows, length), generator=draw),
    )
    lengths = torch.tensor([5, 2, 3, 4])[:rows]
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}, y.where(mask == 1, IGNORED)


def image(rows=4):
    draw = seeded(3)
    y = torch.randint(CLASSES, (rows, 4, 4), generator=draw)
    y[:, 0] = 255
    return torch.randn(rows, 1, 4, 4, generator=draw), y


TOKENS = {"classes": -1, "ignore_index": IGNORED}
CLASSIFYING = {
    "cross_entropy": CrossEntropy,
    "weighted": lambda: CrossEntropy(weight=[1.0, 2.0, 3.0], label_smoothing=0.1),
    "sadd": SAdD,
    "vadd kl": VAdD,
    "vadd qe shared": lambda: VAdD(divergence=qe, noise="shared"),
    "vadd reverse confident": lambda: VAdD(divergence=reverse_kl, confidence=1.0),
    "vadd ema": lambda: VAdD(target=EMA(), divergence=cross_entropy),
    "pi": PiModel,
    "mean teacher": MeanTeacher,
    "r-drop": RDrop,
    "fraternal": FraternalDropout,
    "stability": TransformationStability,
    "exclusivity": MutualExclusivity,
    "entropy": EntropyMinimization,
}


def warm(step, *args, **kwargs):
    """The loss of a second step: the search of the first one would find a teacher that agrees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(*args, **kwargs)
        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter.mul_(1.2)
        return step(*args, **kwargs).loss


@pytest.mark.parametrize("name", [*CLASSIFYING, "vat", "at"])
def test_tokens(name):
    make = {**CLASSIFYING, "vat": lambda: VAT(at="embeddings"), "at": lambda: AT(at="embeddings")}[name]
    model, (inputs, y) = Tagger(), text()
    loss = warm(Step(model, make(), **TOKENS), inputs, y, unlabeled=inputs, generator=seeded())
    assert loss.shape == ()
    assert all(slope.isfinite().all() and slope.abs().max() > 0 for slope in gradients(model, loss))


@pytest.mark.parametrize("name", [*CLASSIFYING, "vat", "at"])
def test_pixels(name):
    make = {**CLASSIFYING, "vat": VAT, "at": AT}[name]
    model, (x, y) = Segmenter(), image()
    loss = warm(Step(model, make(), ignore_index=255), x, y, generator=seeded())
    assert all(slope.isfinite().all() and slope.abs().max() > 0 for slope in gradients(model, loss))


REAL = {"multi-label": (bernoulli_kl, BinaryCrossEntropy), "regression": (mse, SquaredError)}


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("term", [VAdD, PiModel, MeanTeacher, VAT, "sadd", "loss", "r-drop"])
def test_many_labels_and_values(kind, term, dense):
    divergence, loss = REAL[kind]
    draw = seeded(1)
    model, x = (Segmenter(), torch.randn(4, 1, 4, 4)) if dense else (quiet(0.5), torch.randn(4, 6, generator=draw))
    y = torch.rand(model(x).shape, generator=draw).round()
    named = {"sadd": lambda: SAdD(divergence=divergence), "loss": loss}
    named["r-drop"] = lambda: RDrop(loss=loss(), divergence=divergence)
    objective = named[term]() if isinstance(term, str) else term(divergence=divergence)
    value = warm(Step(model, objective), x, y, generator=seeded())
    *slopes, _ = gradients(model, value)  # the last bias is the same in two outputs that are compared
    assert all(slope.isfinite().all() and slope.abs().max() > 0 for slope in slopes)


@pytest.mark.parametrize("name", CLASSIFYING)
def test_a_padded_row_has_the_loss_of_the_unpadded_one(name):
    model, ids, y = Tagger().double(), torch.randint(WORDS, (1, 4)), torch.randint(CLASSES, (1, 4))
    padded = {"input_ids": F.pad(ids, (0, 3)), "attention_mask": F.pad(torch.ones_like(ids), (0, 3))}
    found = []
    for inputs, labels in (({"input_ids": ids}, y), (padded, F.pad(y, (0, 3), value=IGNORED))):
        torch.manual_seed(0)
        found.append(warm(Step(model, CLASSIFYING[name](), **TOKENS), inputs, labels, generator=seeded()))
        for parameter in model.parameters():
            parameter.data.div_(1.2)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


DETERMINISTIC = {
    "cross_entropy": CrossEntropy,
    "weighted": CLASSIFYING["weighted"],
    "sadd": SAdD,
    "entropy": EntropyMinimization,
    "exclusivity": MutualExclusivity,
}


@pytest.mark.parametrize("divergence", [kl, reverse_kl, cross_entropy, qe, bernoulli_kl, mse])
def test_a_padded_batch_has_the_mean_loss_of_its_rows(divergence):
    model, teacher, (inputs, y) = Tagger(p=0.0).double(), Tagger().double().eval(), text()
    terms = {**DETERMINISTIC, "teacher": lambda: VAdD(target=teacher, divergence=divergence)}
    for name, make in terms.items():
        whole = run(model, make(), {"x": inputs, "y": y}, **TOKENS).loss
        rows = []
        for row in range(len(y)):
            short = int(inputs["attention_mask"][row].sum())
            part = {"input_ids": inputs["input_ids"][row : row + 1, :short]}
            rows.append(run(model, make(), {"x": part, "y": y[row : row + 1, :short]}, **TOKENS).loss)
        torch.testing.assert_close(
            whole, torch.stack(rows).mean(), rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_ignored_places_count_neither_for_the_loss_nor_for_a_divergence():
    """Other logits at the ignored places change nothing, and no gradient reaches them."""
    x, y = image()
    objective = CrossEntropy() + SAdD() + VAdD() + RDrop() + PiModel()
    results = []
    for garbage in (0.0, 7.0):
        torch.manual_seed(0)
        model = Segmenter()
        extra = nn.Parameter(torch.full((1, CLASSES, 1, 4), garbage) * torch.arange(3)[None, :, None, None])
        network = Shifted(model, extra)
        loss = run(network, objective, {"x": x, "y": y}, ignore_index=255).loss
        at_ignored, *slopes = gradients(network, loss)
        assert (at_ignored == 0).all()
        results.append([loss, *slopes])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


class Shifted(nn.Module):
    """Adds something to the logits of the first line."""

    def __init__(self, net, extra):
        super().__init__()
        self.net, self.extra = net, extra

    def forward(self, x):
        z = self.net(x)
        return torch.cat([z[:, :, :1] + self.extra, z[:, :, 1:]], 2)


def test_classes_may_be_last_in_an_output_with_several_dimensions():
    class Last(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x).movedim(1, -1)

    model, objective, draw = Segmenter(), CrossEntropy() + VAdD(noise="shared") + PiModel(), seeded()
    rows = {"x": torch.randn(2, 1, 4, 5, generator=draw), "y": torch.randint(CLASSES, (2, 4, 5), generator=draw)}
    one, other = run(model, objective, rows).loss, run(Last(model), objective, rows, classes=-1).loss
    torch.testing.assert_close(one, other)


def test_cross_entropy_of_places_against_numpy():
    model, (inputs, y) = Tagger(p=0.0).double(), text()
    z = model(**inputs)["logits"].detach().numpy()
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    rows = [np.mean([-np.log(p[b, t, y[b, t]]) for t in range(5) if y[b, t] != IGNORED]) for b in range(4)]
    assert run(model, CrossEntropy(), {"x": inputs, "y": y}, **TOKENS).loss.item() == pytest.approx(np.mean(rows))


def test_an_example_without_labels_is_unlabeled():
    """It has no cross-entropy, and the mean is over the others; VAdD and the Π model use it."""
    model, x, y = quiet(0.5), torch.randn(6, 6), torch.tensor([0, 1, IGNORED, 2, IGNORED, 1])
    found = run(model, CrossEntropy() + PiModel(), {"x": x, "y": y}, ignore_index=IGNORED).terms
    assert found["pi_model"] == run(model, CrossEntropy() + PiModel(), {"x": x, "y": y.clamp_min(0)}).terms["pi_model"]
    calm = quiet()
    only = run(calm, CrossEntropy(), {"x": x[y != IGNORED], "y": y[y != IGNORED]}).loss
    torch.testing.assert_close(run(calm, CrossEntropy(), {"x": x, "y": y}, ignore_index=IGNORED).loss, only)
    torch.testing.assert_close(run(calm, SAdD(delta=0.0), {"x": x, "y": y}, ignore_index=IGNORED).loss, only)
    tagger, (inputs, labels) = Tagger(), text()
    labels[1] = IGNORED  # a whole row without labels: all tokens of its mask count for the entropy
    value = run(tagger, EntropyMinimization(), {"x": inputs, "y": labels}, **TOKENS)
    alone = run(tagger, EntropyMinimization(), {"unlabeled": inputs}, **TOKENS)
    torch.testing.assert_close(value.loss, alone.loss)


def test_a_batch_without_any_label_has_a_loss_of_zero_and_says_so_once():
    model = quiet()
    step = Step(model, CrossEntropy() + PiModel(divergence=mse), ignore_index=IGNORED)
    rows = {"x": torch.randn(4, 6), "y": torch.full((4,), IGNORED)}
    with pytest.warns(UserWarning, match="all labels of this batch are ignore_index=-100"):
        loss = step(**rows)
    assert loss.terms["cross_entropy"] == 0
    assert all((slope == 0).all() for slope in gradients(model, loss.loss))
    step(**rows)  # a warning would be an error here


@pytest.mark.parametrize("weight", [None, [0.5, 2.0, 0.0]])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("soft", [False, True])
def test_class_weights_label_smoothing_and_soft_labels(weight, smoothing, soft):
    model, x, draw = quiet().double(), torch.randn(5, 6).double(), seeded()
    y = torch.rand(5, 3, generator=draw).softmax(1).double() if soft else torch.randint(3, (5,), generator=draw)
    found = run(model, CrossEntropy(weight, smoothing), {"x": x, "y": y}).loss
    factors = None if weight is None else torch.tensor(weight).double()
    expected = F.cross_entropy(model(x), y, factors, label_smoothing=smoothing, reduction="none").mean()
    torch.testing.assert_close(found, expected)
    z = model(x).log_softmax(1)
    t = y if soft else F.one_hot(y, 3).double()
    by_hand = -((t * (1 - smoothing) + smoothing / 3) * z * (1.0 if factors is None else factors)).sum(1).mean()
    torch.testing.assert_close(found, by_hand)


def test_soft_labels_of_places():
    model, x, y = Segmenter(0.0), torch.randn(2, 1, 4, 4), torch.rand(2, 3, 4, 4).softmax(1)
    expected = F.cross_entropy(model(x), y)
    torch.testing.assert_close(run(model, CrossEntropy(), {"x": x, "y": y}).loss, expected)
    tagger, (inputs, _) = Tagger(0.0), text()
    soft = torch.rand(4, 5, CLASSES).softmax(-1)
    z = tagger(**inputs)["logits"].log_softmax(-1)
    mask = inputs["attention_mask"]
    expected = ((-(soft * z).sum(-1) * mask).sum(1) / mask.sum(1)).mean()
    torch.testing.assert_close(run(tagger, CrossEntropy(), {"x": inputs, "y": soft}, classes=-1).loss, expected)


def test_values_and_many_labels_against_torch():
    model, x = quiet(), torch.randn(4, 6)
    y = torch.rand(4, 3)
    torch.testing.assert_close(run(model, SquaredError(), {"x": x, "y": y}).loss, F.mse_loss(model(x), y))
    expected = F.binary_cross_entropy_with_logits(model(x), y)
    torch.testing.assert_close(run(model, BinaryCrossEntropy(), {"x": x, "y": y}).loss, expected)
    for labels in (y.round().long(), y.round().bool()):
        expected = F.binary_cross_entropy_with_logits(model(x), labels.float())
        torch.testing.assert_close(run(model, BinaryCrossEntropy(), {"x": x, "y": labels}).loss, expected)
    one = nn.Linear(6, 1)
    torch.testing.assert_close(run(one, SquaredError(), {"x": x, "y": y[:, 0]}).loss, F.mse_loss(one(x)[:, 0], y[:, 0]))


@pytest.mark.parametrize(
    ("objective", "loss"),
    [(SquaredError(), F.mse_loss), (BinaryCrossEntropy(), F.binary_cross_entropy_with_logits)],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_outputs_without_a_label_are_left_out_of_a_loss_of_values(objective, loss, kind):
    model, x, y = nn.Linear(4, CLASSES), torch.randn(5, 4), torch.randint(2, (5, CLASSES)).to(kind)
    y[0, 1], y[2, :2], y[3] = IGNORED, IGNORED, IGNORED
    found = run(model, objective, {"x": x, "y": y}, ignore_index=IGNORED).loss
    rows = [(model(x)[row][y[row] != IGNORED], y[row][y[row] != IGNORED].float()) for row in (0, 1, 2, 4)]
    torch.testing.assert_close(found, torch.stack([loss(*row) for row in rows]).mean())
    one, y = nn.Linear(4, 1), torch.tensor([0, 1, IGNORED, 1, 0]).to(kind)
    found = run(one, SquaredError(), {"x": x, "y": y}, ignore_index=IGNORED).loss
    torch.testing.assert_close(found, F.mse_loss(one(x)[y != IGNORED, 0], y[y != IGNORED].float()))
    with pytest.warns(UserWarning, match="all labels of this batch are ignore_index=-100"):
        run(one, objective, {"x": x, "y": torch.full_like(y, IGNORED)}, ignore_index=IGNORED)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_many_labels_of_tokens_with_padding(kind):
    """As a Hugging Face collator pads them, with the classes last."""
    model, x, y = nn.Linear(4, CLASSES), torch.randn(2, 5, 4), torch.randint(2, (2, 5, CLASSES)).to(kind)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    y[1, 3:] = IGNORED

    objective, inputs = BinaryCrossEntropy() + PiModel(divergence=bernoulli_kl), {"x": x, "attention_mask": mask}
    rows = [
        F.binary_cross_entropy_with_logits(model(x)[row, :size], y[row, :size].float())
        for row, size in enumerate((5, 3))
    ]
    for ignored in (IGNORED, None):
        found = Step(Where(model), objective, classes=-1, ignore_index=ignored)(inputs, y).loss
        torch.testing.assert_close(found, torch.stack(rows).mean())


def test_soft_labels_of_places_must_sum_to_one_where_they_count():
    model, x, y = nn.Conv1d(4, CLASSES, 1), torch.randn(2, 4, 3), torch.randn(2, CLASSES, 3).softmax(1)
    run(model, CrossEntropy(), {"x": x, "y": y})
    y[1, :, 2] = 0.5
    for objective in (CrossEntropy(), CrossEntropy(label_smoothing=0.1)):
        with pytest.raises(ValueError, match=r"soft labels must sum to 1 over the 3 classes, got a sum of 1\.5"):
            run(model, objective, {"x": x, "y": y})
        counts = {"where": torch.tensor([[1, 1, 1], [1, 1, 0]])}
        run(Where(model), objective, {"x": {"x": x, **counts}, "y": y}, mask="where")


class Where(nn.Module):
    """Takes a mask and leaves it to the step."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, **masks):
        del masks
        return self.model(x)


def test_the_mask_can_be_a_name_a_position_a_function_or_nothing():
    tagger, (inputs, y) = Tagger(0.0), text()
    y, ids, mask = y.clamp_min(0), inputs["input_ids"], inputs["attention_mask"]
    expected = run(tagger, CrossEntropy(), {"x": inputs, "y": y}, classes=-1).loss
    for given, where in (((ids, mask), 1), ({"input_ids": ids}, lambda _: mask)):
        torch.testing.assert_close(
            run(tagger, CrossEntropy(), {"x": given, "y": y}, classes=-1, mask=where).loss, expected
        )
    assert run(tagger, CrossEntropy(), {"x": inputs, "y": y}, classes=-1, mask=None).loss != expected
    with pytest.raises(
        ValueError, match=r"mask='real' is not a tensor among the inputs \['input_ids', 'attention_mask'\]"
    ):
        run(tagger, CrossEntropy(), {"x": inputs, "y": y}, classes=-1, mask="real")
    with pytest.raises(ValueError, match=r"mask of the places, \(4, 4\), does not fit.*\(4, 3, 5\).*mask=None"):
        run(tagger, CrossEntropy(), {"x": inputs, "y": y}, classes=-1, mask=lambda _: mask[:, 1:])


@pytest.mark.parametrize("term", [CrossEntropy(), VAT(at="embeddings")], ids=["places", "tokens"])
def test_a_mask_that_is_added_to_attention_scores_is_refused(term):
    inputs, y = text()
    added = torch.where(inputs["attention_mask"] == 0, -torch.inf, 0.0)
    with pytest.raises(ValueError, match=r"must be 0 where they do not count, got values down to -inf"):
        run(Tagger(0.0), term, {"x": {**inputs, "attention_mask": added}, "y": y.clamp_min(0)}, classes=-1)


def test_the_mask_can_be_a_function_of_one_tensor():
    network = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, CLASSES))
    tokens, y = torch.arange(1, 9).view(2, 4), torch.arange(8).view(2, 4) % CLASSES
    tokens[:, 3] = 0
    objective = CrossEntropy() + EntropyMinimization()
    short = run(network, objective, {"x": tokens[:, :3], "y": y[:, :3]}, classes=-1)
    padded = run(network, objective, {"x": tokens, "y": y}, classes=-1, mask=lambda x: x != 0)
    torch.testing.assert_close(padded.loss, short.loss)
    for mask in ("real", 1):
        with pytest.raises(ValueError, match=rf"mask={mask!r} is not a tensor among the inputs Tensor; use.*mask=None"):
            run(network, objective, {"x": tokens, "y": y}, classes=-1, mask=mask)


X, Y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
WRONG = {
    "no label": (
        CrossEntropy(),
        Y - 100,
        {},
        ValueError,
        r"from -100 to -98; a value that means 'no label'.*ignore_index",
    ),
    "a class": (CrossEntropy(), Y, {"ignore_index": 2}, ValueError, r"ignore_index=2 is also one of the classes 0..2"),
    "float classes": (
        CrossEntropy(),
        Y.float(),
        {},
        TypeError,
        r"integers, or probabilities.*\(4, 3\); got torch.float32",
    ),
    "bool classes": (CrossEntropy(), Y > 0, {}, TypeError, "labels must be integers, got torch.bool"),
    "one-hot": (CrossEntropy(), F.one_hot(Y), {}, ValueError, r"\(4, 3\), which need labels of shape \(4,\); one-hot"),
    "a column": (CrossEntropy(), Y[:, None], {}, ValueError, r"labels of shape \(4, 1\) do not fit"),
    "many-hot": (CrossEntropy(), torch.ones(4, 3), {}, ValueError, r"sum to 1 over the 3 classes, got a sum of 3"),
    "negative": (
        CrossEntropy(),
        torch.tensor([[2.0, -1.0, 0.0]] * 4),
        {},
        ValueError,
        r"\[0, 1\], got values from -1 to 2",
    ),
    "weights": (CrossEntropy(weight=[1.0, 2.0]), Y, {}, ValueError, r"2 class weights for 3 outputs: \(1.0, 2.0\)"),
    "out of range": (BinaryCrossEntropy(), torch.full((4, 3), 1.5), {}, ValueError, "multi-label targets.*1.5 to 1.5"),
    "not many": (BinaryCrossEntropy(), Y, {}, ValueError, r"\(4, 3\), got \(4,\); for one class.*CrossEntropy"),
    "values": (SquaredError(), torch.ones(4, 2), {}, ValueError, r"\(4, 3\), got \(4, 2\)"),
    "axis": (CrossEntropy(), Y, {"classes": 2}, ValueError, r"classes must be 1 for outputs"),
    "index": (CrossEntropy(), Y, {"ignore_index": "none"}, TypeError, "ignore_index must be an int"),
}


@pytest.mark.parametrize(("objective", "y", "options", "error", "message"), WRONG.values(), ids=WRONG)
def test_labels_that_do_not_fit_are_told(objective, y, options, error, message):
    with pytest.raises(error, match=message):
        run(quiet(), objective, {"x": X, "y": y}, **options)


@pytest.mark.parametrize(
    "make", [CatGAN, FakeClass, lambda maker, _: Gamma(CLASSES), lambda *given: CatGAN(*given).opponent]
)
def test_terms_of_one_prediction_refuse_places(make):
    maker = nn.Sequential(nn.Linear(4, 25), nn.Unflatten(1, (1, 5, 5)))
    with pytest.raises(ValueError, match=r"needs one prediction \(B, C\).*got outputs of shape \(2, 3, 5, 5\); for"):
        run(Segmenter(), make(maker, 4), {"unlabeled": torch.randn(2, 1, 5, 5)})


def test_other_mistakes():
    tagger, (inputs, y) = Tagger(), text()
    with pytest.raises(
        ValueError, match=r"labels of shape \(4, 5\).*\(4, 5, 3\), which need.*\(4, 3\); if the last.*classes=-1"
    ):
        run(tagger, CrossEntropy(), {"x": inputs, "y": y}, ignore_index=IGNORED, mask=None)
    rows = {"unlabeled": inputs, "index": torch.arange(4)}
    with pytest.raises(ValueError, match="temporal ensembling keeps one output"):
        run(tagger, TemporalEnsembling(4, CLASSES), rows, **TOKENS)
    with pytest.raises(ValueError, match="weight must be zero or more"):
        CrossEntropy(weight=[-1.0])


def small_network(outputs=CLASSES, p=0.5):
    return nn.Sequential(nn.Linear(4, 20), nn.ReLU(), AdversarialDropout(p, 0.2), nn.Linear(20, outputs))


@pytest.mark.parametrize("term", [AT(), AT(norm="l2"), SAdD(), SAdD(divergence=kl), SAdD(divergence=qe)])
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([[-8.0, 0.5, 3.0]]), "must hold probabilities .*-8 to 3; for values use SquaredError"),
        (torch.tensor([[1.0, 1.0, 0.0]]), r"sum to 1 .*AT\(loss=BinaryCrossEntropy\(\)\) and SAdD\(divergence=bern"),
    ],
)
def test_values_are_not_taken_for_probabilities(term, y, message):
    x, y = torch.randn(6, 4), y.repeat(6, 1)
    with pytest.raises(ValueError, match=message):
        run(small_network(), SquaredError() + term, {"x": x, "y": y})


@pytest.mark.parametrize(
    "loss", [SquaredError(), BinaryCrossEntropy(), CrossEntropy(), CrossEntropy(label_smoothing=0.2)]
)
def test_at_has_the_loss_of_its_labels(loss):
    x, model = torch.randn(6, 4), small_network(p=0.0)
    y = torch.tensor([[1.0, 0.0, 0.0]]).repeat(6, 1)
    found = Step(model, loss + AT(epsilon=0.3, loss=loss))(x, y)
    moved = x.clone().requires_grad_()
    Step(model, loss)(moved, y).loss.backward()
    expected = Step(model, loss)(x + 0.3 * moved.grad.sign(), y).loss
    torch.testing.assert_close(found.terms["at"], expected)
    assert found.terms["at"] > found.loss - found.terms["at"]  # the step makes the loss larger


@pytest.mark.parametrize(("loss", "divergence"), [(SquaredError(), mse), (BinaryCrossEntropy(), bernoulli_kl)])
@pytest.mark.parametrize("places", [False, True])
def test_sadd_leaves_out_outputs_without_a_label(loss, divergence, places):
    layer = nn.Conv1d(4, CLASSES, 1) if places else nn.Linear(4, CLASSES)
    model = nn.Sequential(AdversarialDropout(0.0, 0.0), layer)
    x = torch.randn(6, 4, 5) if places else torch.randn(6, 4)
    y = torch.randint(0, 2, model(x).shape).float()
    y[:, 1] = IGNORED
    y[0] = IGNORED
    found = Step(model, loss + SAdD(divergence=divergence), ignore_index=IGNORED)(x, y).terms
    one, other = found.values()
    torch.testing.assert_close(other, one)  # labels are 0 and 1, so that KL is the cross-entropy


@pytest.mark.parametrize(
    ("loss", "divergence", "y"),
    [
        (SquaredError(), mse, torch.randn(6)),
        (BinaryCrossEntropy(), bernoulli_kl, torch.tensor([0, 1, 1, 0, 0, 1])[:, None]),
        (BinaryCrossEntropy(), bernoulli_kl, torch.tensor([0, 1, 1, 0, 0, 1])[:, None] == 1),
    ],
)
def test_sadd_takes_the_labels_that_the_loss_takes(loss, divergence, y):
    model = nn.Sequential(AdversarialDropout(0.0, 0.0), nn.Linear(4, 1))
    one, other = Step(model, loss + SAdD(divergence=divergence))(torch.randn(6, 4), y).terms.values()
    torch.testing.assert_close(other, one)


@pytest.mark.parametrize("divergence", [mse, bernoulli_kl])
def test_values_have_no_confidence(divergence):
    with pytest.raises(ValueError, match=f"confidence=1.0 .* and {divergence.__name__} compares values"):
        VAdD(divergence=divergence, confidence=1.0)
