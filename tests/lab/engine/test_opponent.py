import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.engine.devices import fabric_of
from advdrop.lab.engine.model import load
from advdrop.lab.engine.opponent import sheet
from advdrop.lab.engine.run import preprocess_of, split_of, training_of
from runs import pictures, tiny


def training(method="catgan", *settings):
    data = pictures()
    config = tiny("data.scaling=unit", *settings, method=method, data=data)
    torch.manual_seed(0)
    split = split_of(config, data)
    made = training_of(config, data, split, preprocess_of(config, data, split), fabric_of(config.engine))
    made.start()
    return made


@pytest.mark.parametrize("method", ["catgan", "gan-fm"])
def test_an_update_of_the_opponent_changes_the_generator_alone(method):
    run = training(method, "network={name: mnist-cnn, batch_norm: true}")  # its statistics must not change either
    before = {name: tensor.clone() for name, tensor in run.network.state_dict().items()}
    generator = list(run.opponent.step.trained.parameters())
    old = [parameter.clone() for parameter in generator]
    run.opponent.update(0, share=1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.network.state_dict().items())
    assert all(parameter.grad is None for parameter in run.network.parameters())
    assert all(not torch.equal(one, other) for one, other in zip(generator, old, strict=True))


def test_its_gradient_is_that_of_its_loss_over_the_accumulated_parts():
    run = training("catgan", "engine.accumulate=2", "training.labeled=4")
    seen = []
    step = run.opponent.step.forward

    def forward(*args, **options):
        found = step(*args, **options)
        parameters = list(run.opponent.step.trained.parameters())
        seen.append(torch.autograd.grad(found.loss, parameters, retain_graph=True))
        return found

    run.opponent.step.forward = forward
    run.opponent.update(0, share=1.0)
    assert len(seen) == 2
    for parameter, *each in zip(run.opponent.step.trained.parameters(), *seen, strict=True):
        torch.testing.assert_close(parameter.grad, sum(each) / 2)


def test_in_float16_a_small_gradient_reaches_the_generator():
    found = []
    for precision in ("32", "fp16"):
        run = training("gan-fm", f"engine.precision={precision}")
        with torch.no_grad():
            for weight in run.network.parameters():
                weight.mul_(0.01)
        run.opponent.update(0, share=1.0)
        found.append(torch.cat([parameter.grad.flatten() for parameter in run.opponent.step.trained.parameters()]))
    assert found[0].abs().max() < 2**-14  # below the normal numbers of float16
    assert torch.cosine_similarity(*found, dim=0) > 0.99


def test_the_second_optimizer_has_its_own_rate_and_follows_the_schedule():
    run = training("gan-fm", "gan-fm.generator_rate=0.01", "gan-fm.generator_beta1=0.25", "optimizer.ramp_down=0.5")
    (group,) = run.opponent.adam.param_groups
    assert group["betas"] == (0.25, 0.999)
    run.update(0)
    assert group["lr"] == pytest.approx(0.01)
    run.update(11)
    assert group["lr"] == pytest.approx(0.01 * run.adam.param_groups[0]["lr"] / run.config.optimizer.learning_rate)
    assert group["lr"] < 0.001


def test_a_finished_run_has_a_sheet_of_samples_and_loads_as_a_classifier(tmp_path):
    data = pictures()
    train(tiny("data.scaling=unit", method="gan-fm", data=data), tmp_path / "r", data=data, progress=False)
    run = RunDirectory.open(tmp_path / "r")
    with Image.open(run.samples) as image:
        assert image.size == (64, 32)
    assert "samples.png" in run.result["sha256"]
    assert not any("generator" in name or "trained" in name for name in run.weights())
    assert load(run.path).network(torch.zeros(1, 1, 8, 8)).shape == (1, 3)


def test_the_sheet_has_eight_pictures_in_a_row_and_few_colors():
    made = torch.zeros(32, 3, 4, 5, dtype=torch.uint8)
    made[9] = 200  # the second of the second row
    with Image.open(io.BytesIO(sheet(made))) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape == (16, 40, 3)
    assert (pixels[4:8, 5:10] == 200).all()
    assert pixels.sum() == 200 * 3 * 20
    assert len(sheet(torch.randint(256, (32, 3, 32, 32), dtype=torch.uint8))) < 40_000


@pytest.mark.parametrize("shape", [(3, 96, 96), (3, 40, 200), (1, 64, 2)])
def test_the_sheet_of_large_pictures_fits_into_a_record(shape):
    made = torch.randint(256, (32, *shape), dtype=torch.uint8)
    made[0] = 100
    with Image.open(io.BytesIO(sheet(made))) as image:
        width, height = image.size
        assert max(width // 8, height // 4) == 32
        assert image.convert("L").getpixel((0, 0)) == 100
    assert len(base64.b64encode(sheet(made))) < 40_000


def test_a_table_has_no_sheet(tmp_path):
    from runs import rings

    data = rings()
    train(tiny(method="catgan", data=data), tmp_path / "r", data=data, progress=False)
    assert not (tmp_path / "r" / "samples.png").exists()
