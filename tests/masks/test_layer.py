import copy
import io
import itertools
import pickle
import re
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from advdrop.masks import AdversarialDropout, sample_mask, use_masks
from advdrop.masks.layer import supplied

MASK = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 2.0]])


def seeded(module, x, seed=3):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return module(x)


@pytest.mark.parametrize(
    ("shape", "granularity", "reference"),
    [
        ((4, 50), "unit", nn.Dropout),
        ((4, 5, 6, 7), "unit", nn.Dropout),
        ((4, 50), "channel", nn.Dropout),
        ((4, 9, 7), "channel", nn.Dropout1d),
        ((4, 9, 6, 7), "channel", nn.Dropout2d),
        ((2, 9, 3, 3, 3), "channel", nn.Dropout3d),
    ],
)
def test_alone_it_is_torchs_dropout_bit_for_bit(shape, granularity, reference, generator):
    for p, dtype in itertools.product((0.0, 0.2, 0.5, 1.0), (torch.float32, torch.bfloat16)):
        x = torch.randn(shape, generator=generator).to(dtype)
        ours, theirs = AdversarialDropout(p, granularity=granularity), reference(p)
        assert torch.equal(seeded(ours, x), seeded(theirs, x))
        assert torch.equal(ours.eval()(x), x)


def test_a_model_draws_the_same_noise_with_either_layer(generator):
    def network(dropout):
        return seeded(
            lambda layer: nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 8), layer, nn.Linear(8, 8), nn.Dropout(0.5)),
            dropout,
        )

    x = torch.randn(3, 4, generator=generator)
    assert torch.equal(seeded(network(AdversarialDropout(0.5)), x), seeded(network(nn.Dropout(0.5)), x))


def test_a_supplied_mask_is_applied_in_both_modes(generator):
    h = torch.randn(2, 4, generator=generator)
    for training, p in itertools.product((True, False), (0.0, 0.5)):
        with use_masks(lambda layer, h: MASK):
            assert torch.equal(AdversarialDropout(p).train(training)(h), h * MASK)


def test_a_supplied_mask_draws_no_noise(generator):
    h, before = torch.randn(2, 4, generator=generator), torch.get_rng_state()
    with use_masks(lambda layer, h: MASK):
        AdversarialDropout(0.5)(h)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_source_sees_which_layer_asks_and_for_what(generator):
    first, second = AdversarialDropout(), AdversarialDropout()
    asked = []

    def source(layer, h):
        asked.append((layer, tuple(h.shape)))
        return torch.ones_like(h)

    with use_masks(source):
        nn.Sequential(first, nn.Linear(4, 3), second)(torch.randn(2, 4, generator=generator))
    assert asked == [(first, (2, 4)), (second, (2, 3))]


def test_a_channel_mask_is_broadcast(generator):
    h = torch.randn(2, 3, 4, 4, generator=generator)
    mask = sample_mask(h, 0.5, generator, "channel")
    with use_masks(lambda layer, h: mask):
        assert torch.equal(AdversarialDropout(granularity="channel")(h), h * mask)


def test_the_output_keeps_the_inputs_dtype():
    h = torch.ones(2, 4, dtype=torch.bfloat16)
    with use_masks(lambda layer, h: MASK):
        assert AdversarialDropout()(h).dtype == torch.bfloat16


def test_the_gradient_flows_through_the_units_that_are_kept():
    h = torch.ones(2, 4, requires_grad=True)
    with use_masks(lambda layer, h: MASK):
        AdversarialDropout()(h).sum().backward()
    assert torch.equal(h.grad, MASK)


def test_blocks_nest_and_end(generator):
    layer, h = AdversarialDropout(0.5).eval(), torch.randn(2, 4, generator=generator)
    with use_masks(lambda layer, h: MASK):
        with use_masks(lambda layer, h: 1 - MASK):
            assert torch.equal(layer(h), h * (1 - MASK))
        assert torch.equal(layer(h), h * MASK)
    assert torch.equal(layer(h), h)


def test_a_block_ends_after_an_error(generator):
    h = torch.randn(2, 4, generator=generator)
    with pytest.raises(RuntimeError, match="stop"), use_masks(lambda layer, h: MASK):
        raise RuntimeError("stop")
    assert torch.equal(AdversarialDropout().eval()(h), h)


def test_threads_do_not_see_each_others_masks():
    layer, h = AdversarialDropout(0.5).eval(), torch.ones(2, 4)
    masks = [torch.zeros(2, 4), MASK, None]
    together, outputs = threading.Barrier(len(masks), timeout=10), {}

    def work(i):
        if masks[i] is None:
            together.wait()
            outputs[i] = layer(h)
            together.wait()
        else:
            with use_masks(lambda layer, h: masks[i]):
                together.wait()
                outputs[i] = layer(h)
                together.wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(masks))]
    with use_masks(lambda layer, h: torch.full((2, 4), 9.0)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [torch.equal(outputs[i], expected) for i, expected in enumerate((masks[0], masks[1], h))] == [True] * 3


def saved_and_loaded(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved_and_loaded])
@pytest.mark.parametrize("inside", [True, False])
def test_a_model_can_be_copied_at_any_moment(duplicate, inside, generator):
    model = nn.Sequential(nn.Linear(4, 4), AdversarialDropout(0.3, 0.1, "none", "channel")).eval()
    h = torch.randn(2, 4, generator=generator)
    if inside:
        with use_masks(lambda layer, h: MASK.clone().requires_grad_() * 1):
            twin = duplicate(model)
            assert torch.equal(twin(h), model(h))
    else:
        twin = duplicate(model)
    assert torch.equal(twin(h), model(h))
    assert repr(twin) == repr(model)


def test_supplied_says_whether_there_is_a_source():
    assert not supplied()
    with use_masks(lambda layer, h: MASK):
        assert supplied()
    assert not supplied()


def test_there_is_no_state_to_save():
    with use_masks(lambda layer, h: MASK):
        assert AdversarialDropout().state_dict() == {}
    nn.Sequential(AdversarialDropout()).load_state_dict(nn.Sequential(nn.Dropout()).state_dict())


def test_a_feature_mask_is_the_same_all_along_a_sequence():
    torch.manual_seed(0)
    layer = AdversarialDropout(p=0.5, granularity="feature")
    dropped = layer(torch.ones(3, 7, 40))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(layer.eval()(dropped), dropped)


@pytest.mark.parametrize("shape", [(3, 4), (2, 1), (2,), (2, 4, 1)])
def test_a_mask_of_another_shape_is_refused(shape):
    layer = AdversarialDropout()
    with (
        use_masks(lambda layer, h: torch.ones(shape)),
        pytest.raises(ValueError, match=r"mask of shape \(.*input of shape \(2, 4\).*expected \(2, 4\)"),
    ):
        layer(torch.ones(2, 4))


@pytest.mark.parametrize(("granularity", "expected"), [("channel", "(2, 3, 1, 1)"), ("feature", "(2, 1, 1, 4)")])
def test_a_unit_mask_fits_no_other_granularity(granularity, expected):
    layer, h = AdversarialDropout(granularity=granularity), torch.ones(2, 3, 4, 4)
    message = f"expected {re.escape(expected)}"
    with use_masks(lambda layer, h: torch.ones_like(h)), pytest.raises(ValueError, match=message):
        layer(h)


@pytest.mark.parametrize("training", [True, False])
def test_inputs_that_are_no_units(training):
    layer = AdversarialDropout().train(training)
    with pytest.raises(TypeError, match=r"AdversarialDropout must be floating point, got torch\.int64"):
        layer(torch.ones(2, 4).long())
    assert layer(torch.ones(0, 4)).shape == (0, 4)


def test_repr_shows_the_options():
    assert repr(AdversarialDropout()) == "AdversarialDropout(p=0.5, delta=0.05, scale='inverted', granularity='unit')"
    layer = AdversarialDropout(0, 0.005, "renormalized", "channel")
    assert repr(layer) == "AdversarialDropout(p=0.0, delta=0.005, scale='renormalized', granularity='channel')"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"p": 1.5}, ValueError, r"p must be in \[0, 1\], got 1\.5"),
        ({"p": -0.1}, ValueError, r"p must be in \[0, 1\], got -0\.1"),
        ({"p": float("nan")}, ValueError, r"p must be in \[0, 1\], got nan"),
        ({"p": True}, TypeError, r"p must be a number.*True \(bool\)"),
        ({"p": "0.5"}, TypeError, r"p must be a number.*'0\.5' \(str\)"),
        ({"delta": 2}, ValueError, r"delta must be in \[0, 1\], got 2"),
        ({"delta": None}, TypeError, r"delta must be a number.*None \(NoneType\)"),
        ({"scale": "half"}, ValueError, "scale must be one of 'inverted', 'renormalized', 'none', got 'half'"),
        ({"granularity": "row"}, ValueError, "granularity must be one of 'unit', 'channel', 'feature', got 'row'"),
    ],
)
def test_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        AdversarialDropout(**options)


# torch hides this warning from its users by itself, but not when warnings are errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_computes_the_same(generator):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(5, 4), AdversarialDropout(0.5), nn.Linear(4, 3))
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(2, 5, generator=generator)
    for training in (True, False):
        model.train(training)
        for mask in (None, MASK, 1 - MASK, None):
            if mask is None:
                assert torch.equal(seeded(compiled, x), seeded(model, x))
                continue
            with use_masks(lambda layer, h, mask=mask: mask):
                assert torch.equal(seeded(compiled, x), seeded(model, x))
    torch._dynamo.reset()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_of_a_supplied_mask_is_refused(reentrant):
    layer = AdversarialDropout(0.5)
    h = torch.ones(2, 4, requires_grad=True)
    with use_masks(lambda layer, h: torch.ones_like(h)):
        out = checkpoint(lambda h: layer(h).square(), h, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="checkpointing"):
        out.sum().backward()


def test_recomputation_of_plain_dropout_is_fine():
    layer = AdversarialDropout(0.5)
    h = torch.ones(2, 4, requires_grad=True)
    out = checkpoint(lambda h: layer(h).square(), h, use_reentrant=False)
    out.sum().backward()
    torch.testing.assert_close(h.grad, 2 * out)
