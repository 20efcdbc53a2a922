import math

import numpy as np
import pytest
import torch
from hypothesis import given as given_examples
from hypothesis import strategies as st

from advdrop.checks import value_checks
from advdrop.divergences import bernoulli_kl, cross_entropy, kl, mse, over_places, qe, reverse_kl

DIVERGENCES = (kl, reverse_kl, cross_entropy, qe)
every_divergence = pytest.mark.parametrize("divergence", DIVERGENCES)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_hand(divergence, t, o):
    """From two arrays of positive probabilities (B, C)."""
    return {
        kl: lambda: (t * np.log(t / o)).sum(1),
        reverse_kl: lambda: (o * np.log(o / t)).sum(1),
        cross_entropy: lambda: -(t * np.log(o)).sum(1),
        qe: lambda: ((t - o) ** 2).mean(1),
    }[divergence]()


def logits_pair(generator, dtype=torch.float64, shape=(7, 5)):
    return tuple(2 * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))


@every_divergence
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_logits_and_probabilities_against_numpy(divergence, dtype, tolerance, generator):
    for shape in ((7, 5), (1, 2), (3, 100)):
        target, logits = logits_pair(generator, dtype, shape)
        t, o = (softmax(tensor.double().numpy()) for tensor in (target, logits))
        for found in (
            divergence(target, logits),
            divergence(torch.from_numpy(t).to(dtype), logits, given="probabilities"),
        ):
            assert (found.shape, found.dtype) == (shape[:1], dtype)
            np.testing.assert_allclose(found, by_hand(divergence, t, o), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_labels_against_numpy(dtype, generator):
    _, logits = logits_pair(generator)
    y = torch.tensor([0, 4, 2, 2, 1, 0, 3], dtype=dtype)
    o, t = softmax(logits.numpy()), np.eye(5)[y.numpy()]
    nll = -np.log(o[np.arange(7), y.numpy()])
    np.testing.assert_allclose(kl(y, logits), nll, atol=1e-12)
    np.testing.assert_allclose(cross_entropy(y, logits), nll, atol=1e-12)
    np.testing.assert_allclose(qe(y, logits), ((t - o) ** 2).mean(1), atol=1e-12)
    floor = np.where(t == 1, 0.0, np.log(torch.finfo(torch.float64).tiny))
    np.testing.assert_allclose(reverse_kl(y, logits), (o * (np.log(o) - floor)).sum(1), rtol=1e-12)


def test_the_label_kl_is_the_cross_entropy_with_its_gradient(generator):
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 3, 0])
    losses = (kl(y, logits), cross_entropy(y, logits), torch.nn.functional.cross_entropy(logits, y, reduction="none"))
    slopes = [torch.autograd.grad(loss.sum(), logits)[0] for loss in losses]
    for loss, slope in zip(losses, slopes, strict=True):
        torch.testing.assert_close(loss, losses[2])
        torch.testing.assert_close(slope, slopes[2])


@given_examples(st.data(), st.sampled_from([kl, reverse_kl, qe]))
def test_never_negative_and_zero_only_at_equality(data, divergence):
    classes = data.draw(st.integers(2, 6))
    row = st.lists(st.floats(-20, 20), min_size=classes, max_size=classes)
    target, logits = (torch.tensor([data.draw(row)], dtype=torch.float64) for _ in range(2))
    value = divergence(target, logits).item()
    apart = (target.softmax(1) - logits.softmax(1)).abs().max().item()
    assert value >= -1e-14
    assert value > 0 or apart < 1e-6
    assert divergence(target, target).item() == pytest.approx(0.0, abs=1e-14)
    assert divergence(target, target + 3.0).item() == pytest.approx(0.0, abs=1e-14)


def test_float32_divergences_are_negative_by_rounding_only(generator):
    logits = 3 * torch.randn(1000, 10, generator=generator)
    nearby = logits + 1e-4 * torch.randn(1000, 10, generator=generator)
    for divergence in (kl, reverse_kl, qe):
        assert divergence(nearby, logits).min() >= -1e-6
        assert divergence(logits + 7.3, logits).min() >= -1e-6


def test_reverse_kl_is_kl_the_other_way_round(generator):
    target, logits = logits_pair(generator)
    torch.testing.assert_close(reverse_kl(target, logits), kl(logits, target))
    assert not torch.allclose(reverse_kl(target, logits), kl(target, logits))


def test_kl_is_cross_entropy_less_the_targets_entropy(generator):
    target, logits = logits_pair(generator)
    torch.testing.assert_close(kl(target, logits), cross_entropy(target, logits) - cross_entropy(target, target))


def test_the_known_values_of_a_coin():
    even, sure = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0])
    assert kl(sure, even).item() == pytest.approx(np.log(2))
    assert cross_entropy(even, even).item() == pytest.approx(np.log(2))
    assert qe(sure, even).item() == 0.25  # ((1 − ½)² + (0 − ½)²) / 2: a mean over classes
    three_to_one = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    expected = 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    assert kl(three_to_one, even, given="probabilities").item() == pytest.approx(expected)


EXTREME = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0], [1e4, 1e4, 1e4]])


@every_divergence
def test_extreme_logits_have_finite_values_and_gradients(divergence):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        target = EXTREME.roll(1, 0).to(dtype).requires_grad_()
        logits = EXTREME.to(dtype).requires_grad_()
        values = divergence(target, logits)
        slopes = torch.autograd.grad(values.sum(), (target, logits))
        assert all(t.isfinite().all() for t in (values, *slopes))


@every_divergence
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_probabilities_and_labels_have_finite_values_and_gradients(divergence, dtype):
    sure = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1e-30, 1.0, 0.0]], dtype=dtype)
    target, logits = sure.requires_grad_(), EXTREME.to(dtype).requires_grad_()
    values = divergence(target, logits, given="probabilities")
    slopes = torch.autograd.grad(values.sum(), (target, logits))
    assert all(t.isfinite().all() for t in (values, *slopes))
    values = divergence(torch.tensor([0, 1, 2, 0]), logits)
    assert values.isfinite().all()
    assert torch.autograd.grad(values.sum(), logits)[0].isfinite().all()


def test_the_exact_values_at_extreme_logits():
    logits = torch.tensor([[1e4, -1e4]])
    assert kl(torch.tensor([1]), logits).item() == 2e4
    assert kl(-logits, logits).item() == 2e4
    assert qe(-logits, logits).item() == 1.0


@every_divergence
def test_half_precision_is_raised_to_float32(divergence, generator):
    for dtype in (torch.bfloat16, torch.float16):
        target, logits = logits_pair(generator, dtype)
        found = divergence(target, logits)
        assert found.dtype == torch.float32
        assert torch.equal(found, divergence(target.float(), logits.float()))
        assert divergence(target.softmax(1), logits, given="probabilities").dtype == torch.float32
        assert divergence(torch.zeros(7, dtype=torch.int64), logits).dtype == torch.float32


@every_divergence
@pytest.mark.parametrize("given", ["logits", "probabilities"])
def test_gradients_flow_into_both_arguments_and_are_right(divergence, given, generator):
    target, logits = logits_pair(generator, shape=(3, 4))
    target = target if given == "logits" else target.softmax(1)
    assert torch.autograd.gradcheck(
        lambda t, o: divergence(t, o, given=given), (target.requires_grad_(), logits.requires_grad_())
    )
    slopes = torch.autograd.grad(divergence(target, logits, given=given).sum(), (target, logits))
    assert all(slope.abs().max() > 1e-3 for slope in slopes)
    divergence(target.detach(), logits, given=given).sum().backward()
    assert target.grad is None
    torch.testing.assert_close(logits.grad, slopes[1])


@every_divergence
def test_examples_do_not_see_each_other(divergence, generator):
    target, logits = logits_pair(generator)
    torch.testing.assert_close(divergence(target, logits)[2:3], divergence(target[2:3], logits[2:3]))


LOGITS = torch.zeros(2, 3)
ERRORS = {
    "label too large": (torch.tensor([0, 3]), LOGITS, {}, ValueError, r"0\.\.2 for 3 outputs.*from 0 to 3"),
    "negative label": (torch.tensor([-1, 2]), LOGITS, {}, ValueError, r"0\.\.2 for 3 outputs.*from -1 to 2"),
    "number of labels": (torch.tensor([0]), LOGITS, {}, ValueError, "1 labels for 2 outputs"),
    "matrix of labels": (torch.zeros(2, 3).long(), LOGITS, {}, ValueError, r"vector \(B,\), got shape \(2, 3\)"),
    "bool labels": (torch.tensor([True, False]), LOGITS, {}, TypeError, r"integers, got torch\.bool"),
    "shapes": (torch.zeros(2, 4), LOGITS, {}, ValueError, r"\(2, 4\) and \(2, 3\)"),
    "broadcast": (torch.zeros(1, 3), LOGITS, {}, ValueError, r"\(1, 3\) and \(2, 3\)"),
    "vector of logits": (torch.zeros(3), torch.zeros(3), {}, ValueError, r"\(B, C\).*shape \(3,\)"),
    "vector of logits for labels": (torch.tensor([0]), torch.zeros(3), {}, ValueError, r"\(B, C\).*shape \(3,\)"),
    "integer logits": (LOGITS, LOGITS.long(), {}, ValueError, r"floats \(B, C\), got torch\.int64"),
    "given": (LOGITS, LOGITS, {"given": "scores"}, ValueError, "given.*'logits', 'probabilities', got 'scores'"),
    "given for labels": (torch.tensor([0, 1]), LOGITS, {"given": "scores"}, ValueError, "given.*got 'scores'"),
}


@pytest.mark.parametrize(("target", "logits", "options", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_show_what_was_given(target, logits, options, error, message):
    for divergence in DIVERGENCES:
        with pytest.raises(error, match=message):
            divergence(target, logits, **options)


def test_labels_are_not_looked_at_when_checks_are_off():
    with value_checks("never"), pytest.raises((RuntimeError, IndexError)):
        kl(torch.tensor([0, 3]), LOGITS)


def test_mse_is_of_values_as_they_are(generator):
    target, output = logits_pair(generator)
    np.testing.assert_allclose(mse(target, output), ((target - output).numpy() ** 2).mean(1))
    assert mse(target.bfloat16(), output.bfloat16()).dtype == torch.float32
    with pytest.raises(ValueError, match="target"):
        mse(target, output[:, :2])
    with pytest.raises(TypeError, match="target"):
        mse(torch.ones(2, 1, dtype=torch.int64), torch.ones(2, 1))


# Places.

ALL = (*DIVERGENCES, bernoulli_kl, mse)
every_kind = pytest.mark.parametrize("divergence", ALL)
SHAPES = [(3, 4, 5), (2, 3, 4, 2), (1, 2, 1)]


def place_by_place(divergence, target, logits, where, given="logits"):
    """A loop over examples and places, each of which is one row for the divergence."""
    values = []
    for row in range(len(logits)):
        counted = []
        for place in np.ndindex(*logits.shape[2:]):
            if where is None or where[(row, *place)]:
                at = (slice(row, row + 1), slice(None), *place)
                one = target[at] if target.is_floating_point() else target[(slice(row, row + 1), *place)]
                counted.append(divergence(one, logits[at], given=given))
        values.append(torch.cat(counted).mean() if counted else torch.zeros((), dtype=logits.dtype))
    return torch.stack(values)


@every_kind
@pytest.mark.parametrize("shape", SHAPES)
def test_places_against_a_loop(divergence, shape, generator):
    target, logits = (tensor.requires_grad_() for tensor in logits_pair(generator, shape=shape))
    where = torch.rand(shape[:1] + shape[2:], generator=generator) < 0.6
    where[0] = True
    where[-1] = len(where) == 1  # one example without any place that counts
    for mask in (None, where, where.long(), where.double()):
        found, expected = divergence(target, logits, where=mask), place_by_place(divergence, target, logits, mask)
        assert found.shape == shape[:1]
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            *(torch.autograd.grad(v.sum(), (target, logits)) for v in (found, expected)), strict=True
        ):
            torch.testing.assert_close(one, other)


@every_kind
@pytest.mark.parametrize("garbage", [0.0, 1e30, float("nan"), float("inf")])
def test_a_padded_batch_has_the_loss_of_its_rows(divergence, garbage, generator):
    lengths, longest = (2, 5, 3), 7
    pairs = [logits_pair(generator, torch.float32, (1, 4, length)) for length in lengths]
    target, logits = (torch.full((3, 4, longest), garbage).requires_grad_() for _ in range(2))
    with torch.no_grad():
        for row, (length, pair) in enumerate(zip(lengths, pairs, strict=True)):
            target[row, :, :length], logits[row, :, :length] = pair[0][0], pair[1][0]
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    found = divergence(target, logits, where=mask)
    torch.testing.assert_close(found, torch.cat([divergence(*pair) for pair in pairs]), rtol=1e-5, atol=1e-5)
    for slope in torch.autograd.grad(found.sum(), (target, logits)):
        assert slope.isfinite().all()
        assert (slope.movedim(1, -1)[~mask] == 0).all()


@every_divergence
def test_labels_of_places_against_a_loop(divergence, generator):
    _, logits = logits_pair(generator, shape=(3, 4, 5))
    y = torch.randint(4, (3, 5), generator=generator)
    where = torch.rand(3, 5, generator=generator) < 0.5
    torch.testing.assert_close(divergence(y, logits), place_by_place(divergence, y, logits, None))
    torch.testing.assert_close(divergence(y, logits, where=where), place_by_place(divergence, y, logits, where))
    torch.testing.assert_close(  # whatever stands in the other places
        divergence(y.where(where, -100), logits, where=where), place_by_place(divergence, y, logits, where)
    )


def test_bernoulli_kl_against_numpy(generator):
    target, logits = logits_pair(generator)
    t, o = (1 / (1 + np.exp(-tensor.numpy())) for tensor in (target, logits))
    expected = (t * np.log(t / o) + (1 - t) * np.log((1 - t) / (1 - o))).mean(1)
    np.testing.assert_allclose(bernoulli_kl(target, logits), expected, atol=1e-12)
    np.testing.assert_allclose(bernoulli_kl(torch.from_numpy(t), logits, given="probabilities"), expected, atol=1e-12)
    hard = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert bernoulli_kl(hard, torch.zeros(1, 2).double(), given="probabilities").item() == pytest.approx(np.log(2))
    assert bernoulli_kl(target, target).abs().max() == 0
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        pair = [EXTREME.roll(k, 0).to(dtype).requires_grad_() for k in range(2)]
        value = bernoulli_kl(*pair)
        assert value.dtype == torch.float32
        assert all(tensor.isfinite().all() for tensor in (value, *torch.autograd.grad(value.sum(), pair)))


PLACES_MISTAKES = {
    "where": (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), torch.ones(2, 3), r"\(2, 4\), got \(2, 3\).*\(2, 3, 4\)"),
    "labels": (torch.zeros(2, 3).long(), torch.zeros(2, 3, 4), None, r"labels of shape \(2, 3\).*classes=-1"),
    "labels of the other kind": (torch.zeros(2, 5, 4).long(), torch.zeros(2, 4, 3, 5), None, r"classes=1"),
    "one-hot": (torch.zeros(2, 3, 4).long(), torch.zeros(2, 3, 4), None, r"y.argmax\(1\), or y.float\(\)"),
    "target": (torch.zeros(2, 3, 5), torch.zeros(2, 3, 4), None, r"\(2, 3, 5\) and \(2, 3, 4\)"),
}


@pytest.mark.parametrize(("target", "logits", "where", "message"), PLACES_MISTAKES.values(), ids=PLACES_MISTAKES)
def test_places_that_do_not_fit_are_told(target, logits, where, message):
    with pytest.raises(ValueError, match=message):
        kl(target, logits, where=where)


def test_probabilities_out_of_range_are_told():
    with pytest.raises(ValueError, match=r"\[0, 1\], got values from -0.5 to 1.5"):
        bernoulli_kl(torch.tensor([[1.5, -0.5]]), torch.zeros(1, 2), given="probabilities")


def test_a_divergence_of_your_own_needs_to_know_nothing_of_places(generator):
    target, logits = logits_pair(generator, shape=(3, 4, 5))
    where = torch.rand(3, 5, generator=generator) < 0.5
    own = lambda target, logits, *, given: (target - logits).abs().amax(1)  # noqa: E731
    found = over_places(own, target, logits, where=where)
    torch.testing.assert_close(found, place_by_place(own, target, logits, where))


@pytest.mark.parametrize("divergence", [kl, reverse_kl, cross_entropy])
def test_a_class_that_is_impossible_in_both_adds_nothing(divergence):
    torch.manual_seed(0)
    target, logits = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    masked = [torch.cat([each, torch.full((4, 1), -math.inf)], 1) for each in (target, logits)]
    value, expected = divergence(*masked), divergence(target, logits)
    torch.testing.assert_close(value, expected)
    pairs = zip(*(torch.autograd.grad(each.sum(), (target, logits)) for each in (value, expected)), strict=True)
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted)


def test_a_class_that_is_impossible_in_the_output_alone_is_infinitely_far():
    assert kl(torch.zeros(1, 2), torch.tensor([[0.0, -math.inf]])).isinf().all()
