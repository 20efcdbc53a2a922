"""AT and VAT at a named module, for networks whose input cannot be moved."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from advdrop import AT, VAT, CrossEntropy, Step, VAdD, insert, kl
from advdrop.objectives.adversarial_training import unit
from small import CLASSES, FEATURES, batch, close, gradients, noisy, only, quiet, run, seeded

WORDS, LENGTH, WIDTH = 20, 4, 16


class Reader(nn.Module):
    """Tokens, a recurrent network that does not see padding, and one prediction per sequence."""

    def __init__(self, p=0.0):
        super().__init__()
        self.embeddings = nn.Embedding(WORDS, WIDTH)
        self.noise, self.mixer = nn.Dropout(p), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids, attention_mask=None):
        return self.above(self.embeddings(input_ids), attention_mask)

    def above(self, h, mask=None):
        h = torch.tanh(self.mixer(self.noise(h)))
        mask = h.new_ones(h.shape[:2]) if mask is None else mask
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def tokens(rows=3, length=LENGTH):
    return torch.randint(WORDS, (rows, length), generator=seeded(1))


def masked(ids):
    mask = torch.ones_like(ids)
    mask[0, 2:] = 0
    mask[1, 3:] = 0
    return mask


def scaled(direction, per, mask):
    """Row by row, token by token."""
    result = torch.zeros_like(direction)
    for row in range(len(direction)):
        real = [t for t in range(direction.shape[1]) if mask[row, t]]
        whole = direction[row, real].norm()
        for t in real:
            result[row, t] = direction[row, t] / (whole if per == "sequence" else direction[row, t].norm())
    return result


@pytest.mark.parametrize("per", ["sequence", "token"])
def test_vat_at_the_embedding_by_hand(per):
    model, ids = Reader().double(), tokens()
    mask = masked(ids)
    term = VAT(epsilon=0.5, at="embeddings", per=per)
    step = Step(insert(model, after="mixer", p=0.0), term)
    found = step(unlabeled={"input_ids": ids, "attention_mask": mask}, generator=seeded()).loss
    h = model.embeddings(ids)
    target = model.above(h, mask).detach()
    start = torch.empty_like(h).normal_(generator=seeded())
    r = (term.xi * scaled(start, per, mask)).requires_grad_()
    (slope,) = torch.autograd.grad(kl(target, model.above(h.detach() + r, mask)).sum(), r)
    expected = kl(target, model.above(h + term.epsilon * scaled(slope, per, mask), mask)).mean()
    close([found, *gradients(model, found)], [expected, *gradients(model, expected)], 1e-12)
    assert found > 0


@pytest.mark.parametrize("per", ["sequence", "token"])
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_at_at_the_embedding_by_hand(norm, per):
    model, ids, y = Reader().double(), tokens(), torch.tensor([0, 1, 2])
    mask = masked(ids)
    found = run(model, AT(0.3, norm, at="embeddings", per=per), {"x": (ids, mask), "y": y}, mask=1).loss
    h = model.embeddings(ids)
    r = torch.zeros_like(h).requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model.above(h.detach() + r, mask), y, reduction="sum"), r)
    direction = scaled(slope, per, mask) if norm == "l2" else slope.sign() * mask[..., None]
    expected = F.cross_entropy(model.above(h + 0.3 * direction, mask), y)
    close([found, *gradients(model, found)], [expected, *gradients(model, expected)], 1e-12)


def test_padding_is_not_moved_even_if_the_network_looks_at_it():
    class Careless(Reader):
        def forward(self, input_ids, attention_mask=None):
            return self.above(self.embeddings(input_ids))

    model, ids = Careless(), tokens()
    mask, seen = masked(ids), []
    model.noise.register_forward_hook(lambda module, given, output: seen.append(given[0].detach()))
    for options, still in (({}, True), ({"mask": None}, False)):
        seen.clear()
        run(
            model,
            VAT(epsilon=5.0, at="embeddings"),
            {"unlabeled": {"input_ids": ids, "attention_mask": mask}},
            **options,
        )
        clean, *moved = seen
        assert all(torch.equal(h[mask == 0], clean[mask == 0]) for h in moved) == still
        assert not any(torch.equal(h[mask == 1], clean[mask == 1]) for h in moved)
        torch.testing.assert_close((moved[-1] - clean).flatten(1).norm(dim=1), torch.full((3,), 5.0))


def test_a_padded_row_has_the_loss_of_the_unpadded_one():
    model, ids = Reader().double(), tokens(1)
    padded = torch.cat([ids, torch.zeros(1, 3).long()], 1)
    mask = (torch.arange(LENGTH + 3) < LENGTH).long()[None]
    for term in (VAT(at="embeddings", iterations=2), VAT(at="embeddings", per="token")):
        short = run(model, term, {"unlabeled": {"input_ids": ids}}).loss
        long = run(model, term, {"unlabeled": {"input_ids": padded, "attention_mask": mask}}).loss
        torch.testing.assert_close(short, long, rtol=1e-9, atol=1e-9)


class Split(nn.Module):
    """The same network, with the part below the module in front of the batch."""

    def __init__(self, model, after):
        super().__init__()
        self.rest = model[after + 1 :]

    def forward(self, h):
        return self.rest(h)


@pytest.mark.parametrize("after", [0, 1, 2, 4])
@pytest.mark.parametrize("noise", ["independent", "shared"])
def test_below_at_and_above_the_layer_it_equals_full_passes_of_the_rest(after, noise):
    """VAT at the output of a module is VAT at the input of what comes behind it."""
    model, rows = quiet().double(), only(batch(dtype=torch.float64), "unlabeled")
    found = run(model, VAT(at=str(after), noise=noise), rows).loss
    h = model[: after + 1](rows["unlabeled"])
    expected = run(Split(model, after), VAT(noise=noise), {"unlabeled": h}).loss
    close([found, *gradients(model, found)], [expected, *gradients(model, expected)], 1e-12)


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: nn.Sequential(model)])
@pytest.mark.parametrize("reuse", [True, False])
def test_it_does_not_disturb_the_terms_that_reuse_a_recorded_lower_part(wrap, reuse):
    """The recorded part of the clean pass has the module's output without r: VAdD must get that one."""
    model, rows = wrap(noisy(norm=False)).double(), only(batch(dtype=torch.float64), "unlabeled")
    at = "1" if isinstance(model[0], nn.Linear) else "0.1"
    terms = []
    for objective in (
        VAdD(noise="shared") + VAT(at=at, noise="shared"),
        VAT(at=at, noise="shared") + VAdD(noise="shared"),
    ):
        torch.manual_seed(0)
        terms.append(run(model, objective, rows, reuse=reuse).terms)
    torch.manual_seed(0)
    alone = run(model, VAdD(noise="shared"), rows, reuse=reuse).terms["vadd_kl"]
    torch.testing.assert_close(terms[0]["vadd_kl"], alone)
    torch.manual_seed(0)
    full = run(model, VAdD(noise="shared") + VAT(at=at, noise="shared"), rows, reuse=False).terms
    torch.testing.assert_close(terms[0]["vat"], full["vat"])
    assert model[0]._forward_hooks == {}


def test_a_module_with_a_layer_behind_it_is_moved_in_front_of_the_layer():
    model = insert(nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)), after="0", p=0.5)
    seen = []
    model[1].register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()))
    run(model, VAT(at="0", noise="shared", epsilon=3.0), only(batch(), "unlabeled"))
    clean, *moved = seen
    dropped = clean == 0
    assert dropped.any()
    assert all((h[dropped] == 0).all() and not torch.equal(h, clean) for h in moved)


def test_outputs_that_are_no_tensor():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(FEATURES, 5, batch_first=True), nn.Linear(5, CLASSES)

        def forward(self, x):
            return self.head(self.lstm(x[:, None])[0][:, -1])

    model = Recurrent()
    loss = run(model, VAT(at="lstm", epsilon=3.0), only(batch(), "unlabeled")).loss
    assert gradients(model, loss)[0].abs().max() > 0


class Twice(Reader):
    def forward(self, input_ids, attention_mask=None):
        return self.above(self.embeddings(input_ids) + self.embeddings(input_ids))


class Never(Reader):
    def forward(self, input_ids, attention_mask=None):
        return self.above(F.embedding(input_ids, self.embeddings.weight))


class Checkpointed(Reader):
    def forward(self, input_ids, attention_mask=None):
        h = checkpoint(self.embeddings, input_ids, use_reentrant=False)
        return self.above(h)


class Integers(Reader):
    def __init__(self):
        super().__init__()
        self.same = nn.Identity()

    def forward(self, input_ids, attention_mask=None):
        return self.above(self.embeddings(self.same(input_ids)))


MISTAKES = {
    "no such module": (Reader, "embeding", ValueError, r"no module 'embeding' \(did you mean embeddings\?\)"),
    "an inner name": (lambda: nn.Sequential(Reader()), "mixer", ValueError, r"\(did you mean 0.mixer\?\)"),
    "the network": (Reader, "", ValueError, "no module ''"),
    "twice": (Twice, "embeddings", ValueError, "'embeddings' ran 2 times; name another"),
    "never": (Never, "embeddings", ValueError, "'embeddings' ran 0 times.*compile it later"),
    "checkpointed": (Checkpointed, "embeddings", RuntimeError, "activation checkpointing"),
    "integers": (Integers, "same", TypeError, "'same' gives torch.int64"),
}


@pytest.mark.parametrize("term", [AT, VAT])
@pytest.mark.parametrize(("make", "at", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(make, at, error, message, term):
    model = make()
    with pytest.raises(error, match=message):
        run(model, CrossEntropy() + term(at=at), {"x": tokens(), "y": torch.tensor([0, 1, 2])})
    assert not any(module._forward_hooks for module in model.modules())


def test_a_token_needs_a_sequence():
    with pytest.raises(ValueError, match=r"per='token' needs an output \(B, T, F\), got \(16, 10\)"):
        run(quiet(), VAT(at="0", per="token"), only(batch(), "unlabeled"))
    with pytest.raises(ValueError, match="'sequence', 'token', got 'word'"):
        VAT(per="word")
    assert unit(torch.ones(1, 4)).norm() == 1
