import hashlib
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, audit, explain, places
from advdrop.randomness import (
    borrowed_noise,
    derived_generator,
    derived_seed,
    mask_generator,
    noise_state,
    python_state,
    seed_noise,
)

CPU = torch.device("cpu")


def test_a_borrowed_block_leaves_the_noise_as_it_was():
    before = torch.get_rng_state()
    with borrowed_noise(CPU):
        torch.rand(10)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_borrowed_block_starts_here_or_where_told():
    start = noise_state(CPU)
    first = torch.rand(5)
    second_state = torch.get_rng_state()
    with borrowed_noise(CPU, start):
        assert torch.equal(torch.rand(5), first)
    assert torch.equal(torch.get_rng_state(), second_state)
    with borrowed_noise(CPU):
        here = torch.rand(5)
    assert torch.equal(torch.rand(5), here)
    assert not torch.equal(here, first)


def test_two_passes_see_the_same_dropout():
    net, x = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5)), torch.ones(4, 8)
    start = noise_state(CPU)
    clean = net(x)
    with borrowed_noise(CPU, start):
        assert torch.equal(net(x), clean)
    assert not torch.equal(net(x), clean)


def test_the_noise_comes_back_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="size"), borrowed_noise(CPU):
        torch.rand(3) + torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


class AlwaysNoisy(nn.Module):
    """Draws from all global generators in evaluation mode, too, as a variational network does."""

    def forward(self, x):
        noise = torch.rand_like(x) + random.random() + np.random.rand()  # noqa: NPY002 - the legacy generator is global
        return x + 0.1 * noise


@pytest.mark.parametrize(
    "look",
    [
        lambda model, x, y: places(model, x),
        lambda model, x, y: explain(model, x[0]),
        lambda model, x, y: audit(model, (x, y), budgets=(1,), draws=1),
        lambda model, x, y: audit(model, (x, y), layers="all", faults=["sign", "stuck"], budgets=(1,), draws=1),
    ],
    ids=["places", "explain", "audit", "audit of layers"],
)
def test_a_look_at_a_network_leaves_the_noise_as_it_was(look):
    model = nn.Sequential(nn.Linear(4, 6), AlwaysNoisy(), AdversarialDropout(delta=0.2), nn.Linear(6, 3))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    look(model, x, y)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]  # noqa: NPY002


def test_only_one_thread_at_a_time_borrows_the_noise():
    inside, entered = threading.Event(), threading.Event()

    def enter():
        inside.set()
        with borrowed_noise(CPU):
            entered.set()

    thread = threading.Thread(target=enter)
    with borrowed_noise(CPU):
        thread.start()
        assert inside.wait(60)
        assert not entered.wait(0.1)
    assert entered.wait(60)
    thread.join(60)


def test_borrowed_blocks_nest():
    start = noise_state(CPU)
    with borrowed_noise(CPU):
        first = torch.rand(2)
        with borrowed_noise(CPU, start):
            assert torch.equal(torch.rand(2), first)
        second = torch.rand(2)
    assert torch.equal(torch.rand(4), torch.cat([first, second]))


def test_a_noise_state_does_not_move_with_the_noise():
    state = noise_state(CPU)
    held = state.cpu.clone()
    torch.rand(100)
    assert torch.equal(state.cpu, held)
    assert state.accelerator is None


def test_an_accelerators_noise_is_borrowed_too(monkeypatch):
    class Accelerator:
        state = torch.tensor([1])

        @classmethod
        def get_rng_state(cls, device):
            return cls.state.clone()

        @classmethod
        def set_rng_state(cls, state, device):
            cls.state = state

    monkeypatch.setattr(torch, "get_device_module", lambda device: Accelerator)
    device = torch.device("cuda", 1)
    start = noise_state(device)
    assert start.equals(noise_state(device))
    assert not start.equals(noise_state(CPU))
    assert not noise_state(CPU).equals(start)
    Accelerator.state = torch.tensor([2])
    assert not start.equals(noise_state(device))
    with borrowed_noise(device, start):
        assert Accelerator.state.item() == 1
        Accelerator.state = torch.tensor([3])
    assert Accelerator.state.item() == 2


def test_states_that_would_draw_the_same_are_equal():
    state = noise_state(CPU)
    assert state.equals(noise_state(CPU))
    torch.rand(1)
    assert not state.equals(noise_state(CPU))
    state.restore()
    assert state.equals(noise_state(CPU))


def test_pythons_and_numpys_noise_can_be_repeated(monkeypatch):
    def drawn():
        return random.random(), np.random.random()  # noqa: NPY002

    state = python_state()
    first, second = drawn(), drawn()
    assert first != second
    state.restore()
    assert drawn() == first
    monkeypatch.delitem(__import__("sys").modules, "numpy")
    state = python_state()
    first = random.random()
    state.restore()
    assert random.random() == first


def drawn(generator):
    return torch.rand(5, generator=generator, device=generator.device)


def test_a_mask_generator_takes_one_draw_and_then_its_own_stream():
    torch.manual_seed(1)
    torch.randint(2**62, ())
    after_one_draw = torch.get_rng_state()
    torch.manual_seed(1)
    first = mask_generator(CPU)
    assert torch.equal(torch.get_rng_state(), after_one_draw)
    masks = drawn(first)
    assert torch.equal(torch.get_rng_state(), after_one_draw)
    second = mask_generator(CPU)
    assert not torch.equal(drawn(second), masks)
    torch.manual_seed(1)
    assert torch.equal(drawn(mask_generator(CPU)), masks)


def test_ranks_seeded_alike_get_different_masks(monkeypatch):
    def on_rank(rank):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        torch.manual_seed(1)
        return drawn(mask_generator(CPU))

    torch.manual_seed(1)
    alone = drawn(mask_generator(CPU))
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    ranks = [on_rank(rank) for rank in range(4)]
    assert torch.equal(ranks[0], alone)
    assert torch.stack(ranks).unique(dim=0).shape == (4, 5)


PARTS = ((), (0,), (1,), ("0",), (0, 0), (0, "noise"), ("noise", 0), (0, "noise", 1), (0, "noise1"), (-1,), ("",))


def test_a_derived_seed_is_one_number_for_each_name_and_the_same_everywhere():
    seeds = [derived_seed(*parts) for parts in PARTS]
    assert len(set(seeds)) == len(PARTS)
    assert all(0 <= seed < 2**62 for seed in seeds)
    assert seeds == [derived_seed(*parts) for parts in PARTS]
    # The first bytes of BLAKE2b of "(0, 'noise', 1)": splits and runs of old records depend on it.
    digest = hashlib.blake2b(b"(0, 'noise', 1)", digest_size=8).hexdigest()
    assert derived_seed(0, "noise", 1) == int(digest, 16) // 4 == 987916460472663184


def test_derived_seeds_use_all_their_bits():
    seeds = [derived_seed(0, update) for update in range(2000)]
    ones = [sum(seed >> bit & 1 for seed in seeds) for bit in range(62)]
    assert min(ones) > 850
    assert max(ones) < 1150


def test_a_derived_generator_starts_from_its_seed_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    first = drawn(derived_generator(3, "order", 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn(derived_generator(3, "order", 1)), first)
    assert torch.equal(drawn(torch.Generator().manual_seed(derived_seed(3, "order", 1))), first)
    assert not torch.equal(drawn(derived_generator(3, "order", 2)), first)
    assert derived_generator(0, device=CPU).device == CPU


def test_seeding_the_noise_is_what_manual_seed_does():
    torch.manual_seed(2**61 + 3)
    expected = torch.rand(4)
    seed_noise(CPU, 2**61 + 3)
    assert torch.equal(torch.rand(4), expected)
