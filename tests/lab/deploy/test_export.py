"""An exported file classifies raw images as the run does, in a program that does not know this one."""

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from advdrop.lab.cli import export as command
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.deploy import export
from advdrop.lab.engine.companion import Blend
from advdrop.lab.engine.model import Model, load
from advdrop.lab.models.networks import NETWORKS, conv_large, mlp
from commands import says


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run_onnx(file, x):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": x})[0]


def test_onnx_classifies_raw_images_in_batches_of_any_size(image_run, capsys):
    path, data = image_run
    code, out, err = says(capsys, "export", path)
    assert (code, err) == (0, "")
    assert out.startswith("written to squares.onnx (")
    model, x = load(path), data.test.x.numpy()
    for batch in (x[:1], x[:7], x):
        assert np.abs(run_onnx("squares.onnx", batch) - model.predict_proba(batch)).max() < 1e-4
    saved = onnx.load("squares.onnx")
    onnx.checker.check_model(saved, full_check=True)
    told = {each.key: each.value for each in saved.metadata_props}
    assert json.loads(told["classes"]) == list(data.classes)
    assert told["input"] == "images: uint8 from 0 to 255, N x 3 x 8 x 8, RGB"
    assert [each.name for each in (*saved.graph.input, *saved.graph.output)] == ["images", "probabilities"]


def test_the_torch_program_needs_torch_alone(image_run, tmp_path, capsys):
    path, data = image_run
    assert says(capsys, "export", path, "--format", "torch", "--out", "deep/model.pt2")[0] == 0
    np.save("x.npy", data.test.x[:5].numpy())
    code = """
import sys; sys.modules["advdrop"] = None
import numpy as np, torch
extra = {"classes.txt": ""}
program = torch.export.load("deep/model.pt2", extra_files=extra)
np.save("y.npy", program.module()(torch.from_numpy(np.load("x.npy"))).numpy())
print(extra["classes.txt"])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240).stdout
    assert json.loads(said) == list(data.classes)
    assert np.abs(np.load("y.npy") - load(path).predict_proba(data.test.x[:5])).max() < 1e-4


def untrained(network, shape, dtype, preprocess):
    return Model(("a", "b"), shape, dtype, preprocess, network.eval(), {})


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_exported(name):
    shape = (3, 32, 32)
    narrow = {"conv-large": {"width": 0.1, "norm": "weight+mean-only", "top_bn": True}}.get(name, {})
    model = untrained(NETWORKS[name](None, shape, 2, **narrow), shape, torch.uint8, Preprocess("centered"))
    _, run = export.exported(model, "torch")
    assert export.largest_difference(run, model, export.random_examples(model)) < 1e-4


def test_a_blend_with_normalized_weights_is_exported_to_onnx():
    shape, options = (1, 12, 12), {"width": 0.1, "norm": "weight+mean-only", "top_bn": True}
    network = Blend(conv_large(None, shape, 2, **options), conv_large(None, shape, 2, **options), 0.3)
    network = network.to(memory_format=torch.channels_last)
    model = untrained(network, shape, torch.uint8, Preprocess("unit", torch.rand(1, 1, 1), torch.rand(1, 1, 1) + 0.1))
    _, run = export.exported(model, "onnx")
    assert export.largest_difference(run, model, export.random_examples(model)) < 1e-4


@pytest.mark.parametrize("name", export.FORMATS)
def test_a_model_of_a_table_is_exported(name):
    model = untrained(mlp(None, (6,), 2), (6,), torch.float32, Preprocess("none", torch.randn(6), torch.rand(6) + 0.1))
    _, run = export.exported(model, name)
    assert export.largest_difference(run, model, 3 * torch.randn(20, 6)) < 1e-4
    assert export.describe(model)["input"] == "images: float32, N x 6"


@pytest.mark.parametrize("wrong", [2e-4, np.nan])
def test_a_file_that_computes_something_else_is_not_written(wrong, image_run, tmp_path, capsys, monkeypatch):
    model = load(image_run[0])
    false = export.Format(".pt2", (), lambda _: b"", lambda _: lambda x: model.probabilities(x) + np.float32(wrong))
    monkeypatch.setitem(export.FORMATS, "torch", false)
    code, out, err = says(capsys, "export", image_run[0], "--format", "torch")
    assert (code, out) == (1, "")
    assert "the exported model differs from the run: by " in err
    assert "nothing is written" in err
    assert list(tmp_path.iterdir()) == []


def test_given_images_are_checked_too(image_run, tmp_path, capsys, monkeypatch):
    path, data = image_run
    (tmp_path / "photos").mkdir()
    for number, x in enumerate(data.test.x[:3]):
        Image.fromarray(x.numpy().transpose(1, 2, 0)).save(tmp_path / "photos" / f"{number}.png")
    seen = []
    read = lambda _: lambda x: seen.append(x) or load(path).probabilities(x)  # noqa: E731
    monkeypatch.setitem(export.FORMATS, "torch", export.Format(".pt2", (), lambda _: b"", read))
    code, out, _ = says(capsys, "export", path, "--format", "torch", "--images", "photos")
    assert code == 0
    assert "checked on 32 random examples and 3 given images" in out
    assert torch.equal(seen[0][-3:], data.test.x[:3])
    code, _, err = says(capsys, "export", path, "--format", "torch", "--out", "a.pt2", "--images", "none*.png")
    assert code == 2
    assert "does not exist" in err


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_told_in_one_line(package, image_run, tmp_path, capsys, monkeypatch):
    real = export.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == package else real(name))
    line = f"advdrop: --format onnx needs {package}, which is not installed; pip install 'advdrop[export]'\n"
    assert says(capsys, "export", image_run[0]) == (2, "", line)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_by_force(image_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "exported", lambda *_: (b"new", None))
    monkeypatch.setattr(command, "largest_difference", lambda *_: 0.0)
    (tmp_path / "mine.onnx").write_bytes(b"mine")
    (tmp_path / "folder.onnx").mkdir()
    code, _, err = says(capsys, "export", image_run[0], "--out", "mine.onnx")
    assert (code, err) == (2, "advdrop: mine.onnx exists; replace it with --force\n")
    assert (tmp_path / "mine.onnx").read_bytes() == b"mine"
    assert says(capsys, "export", image_run[0], "--out", "mine.onnx", "--force")[0] == 0
    assert (tmp_path / "mine.onnx").read_bytes() == b"new"
    code, _, err = says(capsys, "export", image_run[0], "--out", "folder.onnx", "--force")
    assert (code, err) == (2, "advdrop: folder.onnx exists; choose another --out\n")
    code, _, err = says(capsys, "export", image_run[0], "--out", "a.onnx", "--format", "torch")
    assert (code, err) == (2, "advdrop: --format torch writes files that end in .pt2, got a.onnx\n")


def test_exporting_leaves_the_model_as_it_is(image_run):
    model, other = load(image_run[0]), load(image_run[0])
    export.Classifier(model)
    one, two = model.network.state_dict(), other.network.state_dict()
    assert all(torch.equal(one[name], two[name]) and one[name].stride() == two[name].stride() for name in one)
    assert all(parameter.requires_grad for parameter in model.network.parameters())


def test_random_examples_are_the_same_each_time_and_use_all_values(image_run):
    x = export.random_examples(load(image_run[0]))
    assert torch.equal(x, export.random_examples(load(image_run[0])))
    assert (x.dtype, x.shape, int(x.min()), int(x.max())) == (torch.uint8, (32, 3, 8, 8), 0, 255)
