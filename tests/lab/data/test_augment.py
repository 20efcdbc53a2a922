import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advdrop.lab.data.batches import Augment

IMAGES = (Augment(2), Augment(1, "zeros"), Augment(flip=True))
ALL = (*IMAGES, Augment(noise=0.3))


def pictures(count=6, shape=(2, 5, 4)):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(9)) + 0.1


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def shifts(x, pixels, mode):
    """Every crop of each image, (2p + 1)² of them, by a loop."""
    sides = [(0, 0), (pixels, pixels), (pixels, pixels)]
    height, width = x.shape[-2:]
    for image in x.numpy():
        padded = np.pad(image, sides, mode="constant" if mode == "zeros" else "reflect")
        yield [
            padded[:, down : down + height, right : right + width]
            for down in range(2 * pixels + 1)
            for right in range(2 * pixels + 1)
        ]


@pytest.mark.parametrize("pixels", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflect", "zeros"])
def test_pad_crop_is_a_shift_of_each_image_and_every_shift_is_as_likely(pixels, mode):
    x = pictures(3000, (2, 8, 7))
    found = Augment(pixels, mode)(x, seeded()).numpy()
    places = (2 * pixels + 1) ** 2
    times = np.zeros(places)
    for made, candidates in zip(found, shifts(x, pixels, mode), strict=True):
        (place,) = [i for i, candidate in enumerate(candidates) if (candidate == made).all()]
        times[place] += 1
    assert abs(times - 3000 / places).max() < 5 * np.sqrt(3000 / places)


def test_flip_mirrors_half_of_the_images_left_to_right():
    x = pictures(1000)
    found, mirrored = Augment(flip=True)(x, seeded()).numpy(), x.numpy()[..., ::-1]
    flipped = (found == mirrored).all((1, 2, 3))
    assert ((found == x.numpy()).all((1, 2, 3)) ^ flipped).all()
    assert 420 < flipped.sum() < 580


@pytest.mark.parametrize("sigma", [0.15, 2.0])
def test_noise_is_gaussian_of_mean_0_and_standard_deviation_sigma(sigma):
    x = torch.full((20, 3, 40, 40), 7.0)
    noise = (Augment(noise=sigma)(x, seeded()) - x).flatten().numpy() / sigma
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    assert (noise**4).mean() == pytest.approx(3.0, abs=0.15)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("augment", ALL, ids=str)
def test_views_are_functions_of_the_images_and_the_generator(augment):
    x, generator = pictures(64), seeded()
    before, state = x.clone(), torch.get_rng_state()
    first, second = augment(x, generator), augment(x, generator)
    assert first.shape == second.shape == x.shape
    assert not torch.equal(first, second)
    assert torch.equal(augment(x, seeded()), first)
    assert not torch.equal(augment(x, seeded(1)), first)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ran = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ran += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("augment", ALL, ids=str)
def test_a_large_batch_takes_as_many_operators_as_a_small_one(augment):
    ran = []
    for count in (2, 64):
        with Operators() as operators:
            augment(pictures(count), seeded())
        ran.append(operators.ran)
    assert ran[0] == ran[1] > 0


def test_changes_are_made_in_their_order_and_draw_one_after_the_other():
    x, generator = pictures(16), seeded()
    expected = x
    for one in (Augment(2, "zeros"), Augment(flip=True), Augment(noise=0.1)):
        expected = one(expected, generator)
    assert torch.equal(Augment(2, "zeros", flip=True, noise=0.1)(x, seeded()), expected)
    assert Augment()(x, seeded()) is x
    assert [bool(each) for each in (Augment(), Augment(padding="zeros"), *ALL)] == [False] * 2 + [True] * 4


@pytest.mark.parametrize("augment", IMAGES, ids=str)
def test_rows_of_a_table_are_no_images(augment):
    with pytest.raises(ValueError, match=r"is for images \(B, C, H, W\), got a batch of \(6, 3\)"):
        augment(torch.ones(6, 3), seeded())


def test_too_many_pixels_to_reflect_are_refused():
    with pytest.raises(ValueError, match="cannot reflect images of 5×4; use fewer pixels or zeros"):
        Augment(4)(pictures(), seeded())


def test_images_are_not_shifted_out_of_sight():
    with pytest.raises(ValueError, match="would shift images of 5×4 out of sight; use fewer pixels"):
        Augment(5, "zeros")(pictures(), seeded())


def test_zeros_can_be_as_wide_as_the_image():
    assert Augment(4, "zeros")(pictures(), seeded()).shape == (6, 2, 5, 4)
