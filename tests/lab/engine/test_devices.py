import inspect
import json
import subprocess
import sys

import pytest
import torch
import yaml
from torch import nn

from advdrop.lab.config.config import Engine
from advdrop.lab.config.recipes import resolve
from advdrop.lab.config.values import ConfigError, overrides
from advdrop.lab.data import DataSet, Examples
from advdrop.lab.engine import RunDirectory, devices, train
from advdrop.lab.engine.devices import device_of, fabric_of, resolve_auto, resumed_config, set_memory_format
from advdrop.lab.engine.model import load
from runs import CLASSES, rings, tiny

IMAGE = (1, 8, 8)


@pytest.fixture
def machine(monkeypatch):
    """Make this machine another one."""

    def become(device, fast_bf16):
        monkeypatch.setattr(devices, "device_of", lambda engine: device)
        monkeypatch.setattr(devices, "has_fast_bf16", lambda device: fast_bf16)

    return become


def images(train_size=24, test_size=6):
    draw = torch.Generator().manual_seed(3)

    def part(size):
        y = torch.arange(size) % len(CLASSES)
        return Examples(torch.rand(size, *IMAGE, generator=draw) + y.view(-1, 1, 1, 1), y)

    return DataSet("squares", part(train_size), part(test_size), CLASSES)


def convolutional(data, *settings):
    short = ("training.updates=1", "training.labeled=4", "training.unlabeled=8", "engine.accelerator=cpu")
    given = overrides(("network.name=mnist-cnn", *short, *settings))
    return resolve(
        "squares", shape=IMAGE, examples=len(data.train), labels=12, method="vadd-kl", preset="paper", settings=given
    )


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [
        ("cpu", "32", "channels_last"),
        ("cpu", "bf16", "channels_last"),
        ("cuda", "32", "contiguous"),
        ("cuda", "bf16", "channels_last"),
        ("cuda", "fp16", "channels_last"),
        ("mps", "32", "contiguous"),
    ],
)
def test_the_memory_format_follows_from_the_device_and_the_network(device, precision, expected, machine):
    machine(device, False)
    setting = f"engine.precision={precision}"
    assert resolve_auto(convolutional(images(), setting)).engine.memory_format == expected
    assert resolve_auto(tiny(setting)).engine.memory_format == "contiguous"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("fast_bf16", [True, False])
def test_the_precision_follows_from_the_instructions(device, fast_bf16, machine):
    machine(device, fast_bf16)
    expected = "bf16" if fast_bf16 else "32"
    assert resolve_auto(tiny("engine.precision=auto")).engine.precision == expected
    assert resolve_auto(tiny("engine.precision=auto", "engine.devices=2")).engine.precision == expected
    assert resolve_auto(tiny("engine.precision=auto", "engine.nodes=2")).engine.precision == "32"
    assert resolve_auto(tiny()).engine.precision == "32"


@pytest.mark.parametrize("avx", [True, False])
@pytest.mark.parametrize("amx", [True, False])
def test_a_cpu_has_fast_bf16_with_one_of_two_sets_of_instructions(avx, amx, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    assert devices.has_fast_bf16("cpu") == (avx or amx)
    assert devices.has_fast_bf16("cuda")
    assert not devices.has_fast_bf16("mps")


@pytest.mark.parametrize("precision", ["32", "bf16", "fp16"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_what_is_given_is_kept(precision, memory_format, machine):
    machine("cpu", True)
    config = tiny(f"engine.precision={precision}", f"engine.memory_format={memory_format}")
    assert resolve_auto(config) == config


def test_nothing_else_changes(machine):
    machine("cpu", True)
    config = convolutional(images(), "engine.precision=auto")
    expected = config.engine.model_copy(update={"precision": "bf16", "memory_format": "channels_last"})
    assert resolve_auto(config) == config.model_copy(update={"engine": expected})
    assert (config.engine.precision, config.engine.memory_format) == ("auto", "auto")


def test_the_device_is_that_of_fabric(monkeypatch):
    def found(name):
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda check_available: name and torch.device(name)
        )

    found("cuda")
    assert device_of(Engine(accelerator="cpu")) == "cpu"
    assert device_of(Engine()) == device_of(Engine(accelerator="gpu")) == "cuda"
    for other in (None, "xpu"):  # Fabric knows no xpu
        found(other)
        assert device_of(Engine()) == "cpu"


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_each_pass_converts_the_weights_again(precision, dtype):
    """A weight that is converted once for two passes would add their gradients up in half precision."""
    network, x = nn.Linear(4, 3), torch.randn(5, 4)

    def gradient(*factors):
        network.zero_grad()
        with fabric_of(Engine(accelerator="cpu", precision=precision)).autocast():
            assert network(x).dtype == dtype
            loss = sum((factor * network(x).float().square()).sum() for factor in factors)
        loss.backward()
        return network.weight.grad.clone()

    assert torch.equal(gradient(1.0, 0.01), gradient(1.0) + gradient(0.01))


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"engine: .*abacus"):
        fabric_of(Engine(accelerator="abacus"))


def test_a_training_starts_without_what_takes_long_to_import():
    code = """
        import sys
        from advdrop.lab.cli import train
        from advdrop.lab.config.config import Engine
        from advdrop.lab.engine.devices import fabric_of
        fabric_of(Engine(accelerator="cpu"))
        assert "lightning_fabric" in sys.modules
        late = {"lightning", "pytorch_lightning", "torchmetrics", "tensorboard", "sklearn", "scipy", "pandas"}
        assert not late & set(sys.modules), late & set(sys.modules)
        import torchmetrics
    """
    subprocess.run([sys.executable, "-c", inspect.cleandoc(code)], check=True, timeout=300)


def test_the_memory_format_of_a_network_is_that_of_its_weights():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    x, weight = torch.randn(2, 3, 4, 4), network[0].weight.detach().clone()
    expected = network(x)
    assert set_memory_format(network, "channels_last") is network
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not network[0].weight.is_contiguous()
    assert torch.equal(network[0].weight, weight)
    torch.testing.assert_close(network(x), expected)
    assert network[0](x).is_contiguous(memory_format=torch.channels_last)
    set_memory_format(network, "contiguous")
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
    ("config", "expected"),
    [(tiny, ("bf16", "contiguous")), (convolutional, ("bf16", "channels_last"))],
    ids=["features", "images"],
)
def test_a_run_directory_holds_what_was_chosen(config, expected, tmp_path, machine):
    machine("cpu", True)
    data = rings() if config is tiny else images()
    config = (
        tiny("engine.precision=auto", data=data) if config is tiny else convolutional(data, "engine.precision=auto")
    )
    result = train(config, tmp_path / "r", data=data, progress=False)
    found = RunDirectory.open(tmp_path / "r")
    assert (found.config.engine.precision, found.config.engine.memory_format) == expected
    assert (result["precision"], result["memory_format"]) == expected
    assert result == json.loads((tmp_path / "r" / "result.json").read_text())
    written = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert "auto" not in written["engine"].values()


def test_a_run_is_resumed_with_what_was_chosen(machine):
    config = tiny("engine.precision=auto")
    machine("cpu", True)
    started = resolve_auto(config)
    machine("cpu", False)
    assert resumed_config(config, started) == started != resolve_auto(config)
    given = tiny("engine.precision=fp16")
    assert resumed_config(given, started).engine.precision == "fp16"


def test_a_trained_network_is_loaded_in_the_order_it_was_trained_in(tmp_path):
    data = images()
    for memory_format in ("contiguous", "channels_last"):
        config = convolutional(data, f"engine.memory_format={memory_format}", "network.delta=0.05")
        train(config, tmp_path / memory_format, data=data, progress=False)
        weight = load(tmp_path / memory_format).network[4].weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == (memory_format == "channels_last")
        assert weight.is_contiguous() == (memory_format == "contiguous")
