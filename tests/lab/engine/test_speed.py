import json

import pytest
import torch
import yaml
from torch import nn

from advdrop.lab.config.config import Engine, overrides
from advdrop.lab.config.recipes import resolve
from advdrop.lab.data import DataSet, Examples
from advdrop.lab.engine import RunDirectory, load_network, speed, train
from advdrop.lab.engine.module import Training
from advdrop.lab.engine.speed import WORTH_IT, chosen, device_of, laid_out, probe
from runs import CLASSES, rings, tiny

IMAGE, FEATURES = (1, 8, 8), (6,)


def clock(monkeypatch, **seconds):
    """A machine of which this is known; whatever else it is asked for is an error."""
    asked = []
    table = {tuple(key.split("__")): value for key, value in seconds.items()}

    def fake(device, memory_format, precision):
        asked.append((device, memory_format, precision))
        return table[memory_format, f"p{precision}"]

    monkeypatch.setattr(speed, "probe", fake)
    return asked


def images(train_size=24, test_size=6):
    draw = torch.Generator().manual_seed(3)

    def part(size):
        y = torch.arange(size) % len(CLASSES)
        return Examples(torch.rand(size, *IMAGE, generator=draw) + y.view(-1, 1, 1, 1), y)

    return DataSet("squares", part(train_size), part(test_size), CLASSES)


def engine_of(*settings, shape=IMAGE, progress=False):
    return chosen(tiny(*(f"engine.{setting}" for setting in settings)), shape, progress).engine


@pytest.mark.parametrize(
    ("contiguous", "expected"),
    [(2.0, "channels_last"), (1.0, "channels_last"), (0.91, "channels_last"), (0.89, "contiguous")],
)
def test_pixels_come_last_unless_that_is_clearly_slower(contiguous, expected, monkeypatch):
    asked = clock(monkeypatch, contiguous__p32=contiguous, channels_last__p32=1.0)
    assert engine_of().memory_format == expected
    assert sorted(asked) == [("cpu", "channels_last", "32"), ("cpu", "contiguous", "32")]
    assert engine_of().precision == "32"


@pytest.mark.parametrize(
    ("gain", "expected"), [(3.0, "bf16"), (WORTH_IT + 0.01, "bf16"), (WORTH_IT, "32"), (1.0, "32"), (0.1, "32")]
)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_half_precision_must_be_worth_it(gain, expected, memory_format, monkeypatch):
    clock(monkeypatch, **{f"{memory_format}__p32": gain, f"{memory_format}__pbf16": 1.0})
    found = engine_of("precision=auto", f"memory_format={memory_format}")
    assert (found.precision, found.memory_format) == (expected, memory_format)


def test_the_precision_is_measured_in_the_order_that_was_chosen(monkeypatch):
    asked = clock(monkeypatch, contiguous__p32=0.5, channels_last__p32=1.0, contiguous__pbf16=0.4)
    found = engine_of("precision=auto")
    assert (found.precision, found.memory_format) == ("bf16", "contiguous")
    assert asked[-2:] == [("cpu", "contiguous", "32"), ("cpu", "contiguous", "bf16")]


@pytest.mark.parametrize("precision", ["32", "bf16", "fp16"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_what_is_said_stays(precision, memory_format, monkeypatch):
    asked = clock(monkeypatch)
    config = tiny(f"engine.precision={precision}", f"engine.memory_format={memory_format}")
    for shape in (IMAGE, FEATURES):
        assert chosen(config, shape, progress=True) == config
    assert asked == []


def test_only_images_have_an_order_of_pixels(monkeypatch):
    asked = clock(monkeypatch)
    for shape in (FEATURES, (6, 5)):
        assert engine_of(shape=shape).memory_format == "contiguous"
    assert asked == []
    assert engine_of("memory_format=channels_last", shape=FEATURES).memory_format == "channels_last"


@pytest.mark.parametrize("many", ["devices=2", "nodes=2"])
def test_several_processes_do_not_ask_their_clocks(many, monkeypatch):
    asked = clock(monkeypatch)
    found = engine_of(many, "precision=auto")
    assert (found.precision, found.memory_format) == ("32", "channels_last")
    monkeypatch.setattr(speed, "device_of", lambda engine: "cuda")
    found = engine_of(many, "precision=auto")
    assert (found.precision, found.memory_format) == ("32", "contiguous")
    assert asked == []


def test_nothing_else_changes(monkeypatch):
    clock(monkeypatch, contiguous__p32=1.0, channels_last__p32=1.0, channels_last__pbf16=0.1)
    config = tiny("engine.precision=auto")
    found = chosen(config, IMAGE)
    expected = config.engine.model_copy(update={"precision": "bf16", "memory_format": "channels_last"})
    assert found == config.model_copy(update={"engine": expected})
    assert (config.engine.precision, config.engine.memory_format) == ("auto", "auto")


@pytest.mark.parametrize(
    ("half", "said"), [(0.5, "precision bf16: bfloat16 has 2 times"), (4.0, "precision 32: bfloat16 has 0.25 times")]
)
def test_the_choice_of_a_precision_is_said(half, said, monkeypatch, capsys):
    clock(monkeypatch, contiguous__p32=1.0, channels_last__p32=1.0, channels_last__pbf16=half)
    engine_of("precision=auto", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{said} the speed of float32 here\n"
    engine_of("precision=auto")
    engine_of(progress=True)
    assert capsys.readouterr() == ("", "")


def test_the_device_is_lightnings(monkeypatch):
    class Found:
        type = "cuda"

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: Found())
    assert device_of(Engine(accelerator="cpu")) == "cpu"
    assert device_of(Engine()) == device_of(Engine(accelerator="gpu")) == "cuda"
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert device_of(Engine()) == "cpu"


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_probe_leaves_the_noise_as_it_was(memory_format, precision):
    before = torch.get_rng_state()
    seconds = probe.__wrapped__("cpu", memory_format, precision)
    assert seconds > 0.0
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_probe_measures_what_it_is_asked_for(memory_format, precision, monkeypatch):
    seen, forward = [], nn.MaxPool2d.forward

    def watched(module, x):
        seen.append((x.dtype, x.is_contiguous(memory_format=torch.channels_last)))
        return forward(module, x)

    monkeypatch.setattr(nn.MaxPool2d, "forward", watched)
    probe.__wrapped__("cpu", memory_format, precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert set(seen) == {(dtype, memory_format == "channels_last")}


def test_a_probe_takes_the_median_and_gives_up_on_what_is_far_too_slow(monkeypatch):
    def ticking(*seconds):
        """A clock that is read twice for each of these."""
        times, now = [], 0.0
        for each in seconds:
            times += [now, now + each]
            now += each
        return iter(times).__next__

    # The first two warm up.
    monkeypatch.setattr(speed.time, "perf_counter", ticking(0.2, 0.1, 0.01, 0.05, 0.02, 0.03, 0.04))
    assert probe.__wrapped__("cpu", "contiguous", "32") == pytest.approx(0.03)
    monkeypatch.setattr(speed.time, "perf_counter", ticking(0.6))
    assert probe.__wrapped__("cpu", "contiguous", "32") == pytest.approx(0.6)


def test_a_machine_is_probed_once(monkeypatch):
    probe.cache_clear()
    first = probe("cpu", "contiguous", "32")
    assert probe("cpu", "contiguous", "32") == first
    assert probe.cache_info().hits == 1


def test_a_network_is_laid_out_with_its_weights():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    x, weight = torch.randn(2, 3, 4, 4), network[0].weight.detach().clone()
    expected = network(x)
    assert laid_out(network, "channels_last") is network
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not network[0].weight.is_contiguous()
    assert torch.equal(network[0].weight, weight)
    torch.testing.assert_close(network(x), expected)
    assert network[0](x).is_contiguous(memory_format=torch.channels_last)
    laid_out(network, "contiguous")
    assert network[0].weight.is_contiguous()
    assert network[0](x).is_contiguous()


def said(precision="32", memory_format="contiguous"):
    return tiny(f"engine.precision={precision}", f"engine.memory_format={memory_format}")


def test_what_is_left_to_the_machine_is_no_difference():
    assert said("auto", "auto").differences(said("bf16", "channels_last")) == []
    assert said("bf16", "channels_last").differences(said("auto", "auto")) == []
    assert said("auto").differences(said("bf16", "channels_last")) == ["engine.memory_format"]


def test_what_is_said_differently_is_a_difference():
    assert said("auto", "auto").differences(said("auto", "auto")) == []
    assert said().differences(said(memory_format="channels_last")) == ["engine.memory_format"]
    assert said().differences(said("bf16", "channels_last")) == ["engine.memory_format", "engine.precision"]
    assert tiny().differences(tiny("network.delta=0.1")) == ["network.delta"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [(rings, ("bf16", "contiguous")), (images, ("bf16", "channels_last"))],
    ids=["features", "images"],
)
def test_a_run_directory_holds_what_was_chosen(data, expected, tmp_path, monkeypatch):
    seconds = {"contiguous__p32": 1.0, "channels_last__p32": 1.0, "contiguous__pbf16": 0.5, "channels_last__pbf16": 0.5}
    clock(monkeypatch, **seconds)
    data = data()
    config = tiny("engine.precision=auto", "training.updates=2", data=data)
    result = train(config, tmp_path / "r", data=data, progress=False)
    found = RunDirectory.open(tmp_path / "r")
    assert (found.config.engine.precision, found.config.engine.memory_format) == expected
    assert (result["precision"], result["memory_format"]) == expected
    assert result == json.loads((tmp_path / "r" / "result.json").read_text())
    written = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert (written["engine"]["precision"], written["engine"]["memory_format"]) == expected
    assert "auto" not in written["engine"].values()


def convolutional(data, *settings):
    short = ("training.updates=1", "training.labeled=4", "training.unlabeled=8", "engine.accelerator=cpu")
    given = overrides(("network.name=mnist-cnn", *short, *settings))
    return resolve(
        "squares", shape=IMAGE, examples=len(data.train), labels=12, method="vadd-kl", preset="paper", settings=given
    )


def test_a_trained_network_is_loaded_in_the_order_it_was_trained_in(tmp_path):
    data = images()
    for memory_format in ("contiguous", "channels_last"):
        config = convolutional(data, f"engine.memory_format={memory_format}", "network.delta=0.05")
        train(config, tmp_path / memory_format, data=data, progress=False)
        weight = load_network(tmp_path / memory_format, data)[4].weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == (memory_format == "channels_last")
        assert weight.is_contiguous() == (memory_format == "contiguous")


class StopError(Exception):
    """What a test stops a training with."""


def test_a_run_goes_on_as_it_began_whatever_the_clock_says_now(tmp_path, monkeypatch):
    data = images()
    config = tiny("training.updates=4", data=data)
    assert config.engine.memory_format == "auto"
    clock(monkeypatch, contiguous__p32=1.0, channels_last__p32=1.0)
    begin = Training.on_train_batch_start

    def stop(self, batch, batch_idx):
        if batch == 2:
            raise StopError
        begin(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "on_train_batch_start", stop)
        with pytest.raises(StopError):
            train(config, tmp_path / "r", data=data, progress=False)
    clock(monkeypatch, contiguous__p32=0.1, channels_last__p32=1.0)
    result = train(config, tmp_path / "r", data=data, progress=False, resume=True)
    assert result["memory_format"] == "channels_last"


def test_what_is_usual_asks_no_clock(monkeypatch):
    monkeypatch.setattr(speed, "probe", lambda *_: pytest.fail("a clock was asked"))
    config = tiny("engine.memory_format=auto", "engine.precision=auto")
    assert speed.usual(config, (1, 28, 28)).engine.memory_format == "channels_last"
    assert speed.usual(config, (6,)).engine.memory_format == "contiguous"
    assert speed.usual(config, (6,)).engine.precision == "32"
    asked = tiny("engine.memory_format=contiguous", "engine.precision=bf16")
    assert speed.usual(asked, (1, 28, 28)) == asked
