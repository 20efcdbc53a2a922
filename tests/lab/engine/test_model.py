"""A finished run is used without its data, and gives what evaluation gave."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import advdrop.lab
from advdrop.lab.data import DataSet, Examples
from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.engine.companion import Blend
from advdrop.lab.engine.evaluate import outputs
from advdrop.lab.engine.model import Model, load
from advdrop.lab.engine.run import preprocess_of, split_of
from advdrop.lab.engine.rundir import RunError
from runs import rings, tiny


def evaluated(path, data):
    """The probabilities of the test images, from the data and the weights, without what the run says of itself."""
    run = RunDirectory(path)
    network = load(path).network
    assert all(torch.equal(network.state_dict()[name], value) for name, value in run.weights().items())
    return outputs(network, data.test.x, preprocess_of(run.config, data, split_of(run.config, data))).softmax(1).numpy()


def test_a_moved_run_without_its_data_gives_what_evaluation_gives_to_the_last_bit(image_run, tmp_path):
    path, data = image_run
    shutil.copytree(path, tmp_path / "moved")
    model = advdrop.lab.load(str(tmp_path / "moved"))
    assert isinstance(model, Model)
    assert isinstance(model.network, Blend)
    assert model.preprocess.whitening is not None
    assert (model.classes, model.shape, model.dtype) == (data.classes, data.shape, torch.uint8)
    found = model.predict_proba(data.test.x)
    assert np.array_equal(found, evaluated(path, data))
    wrong = np.mean([name != data.classes[y] for name, y in zip(model.predict(data.test.x), data.test.y, strict=True)])
    assert 100 * wrong == pytest.approx(RunDirectory(path).result["test_error_percent"])


def test_files_pictures_arrays_and_tensors_are_the_same(image_run, tmp_path):
    path, data = image_run
    model, expected = load(path), evaluated(path, data)
    arrays = [np.ascontiguousarray(x.numpy().transpose(1, 2, 0)) for x in data.test.x]
    pictures = [Image.fromarray(array) for array in arrays]
    files = [tmp_path / f"größe {number}.png" for number in range(len(pictures))]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    for kind in (pictures, files, map(str, files), arrays, np.stack(arrays), list(data.test.x), data.test.x.numpy()):
        assert np.array_equal(model.predict_proba(kind), expected)
    for one in (pictures[0], files[0], str(files[0]), arrays[0], data.test.x[0]):
        assert np.allclose(model.predict_proba(one), expected[:1], atol=1e-6)
    assert np.array_equal(model.predict_proba([pictures[0], files[1], *arrays[2:]]), expected)


def test_a_model_of_a_table(tmp_path):
    data = rings()
    train(tiny(data=data), tmp_path / "r", data=data, progress=False)
    model = load(tmp_path / "r")
    assert not model.takes_images
    assert np.array_equal(model.predict_proba(data.test.x), evaluated(tmp_path / "r", data))
    assert model.predict(data.test.x.tolist()) == model.predict(data.test.x)
    assert model.predict(data.test.x[3]) == model.predict(data.test.x)[3:4]
    with pytest.raises(ValueError, match=r"numbers of shape \(N, 6\), got \(2, 5\)"):
        model.predict(np.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"numbers of shape \(N, 6\), not images"):
        model.predict("cat.png")


def test_many_examples_are_read_in_batches(image_run):
    path, data = image_run
    model, seen, read = load(path), [], []
    model.network.register_forward_hook(lambda _, args, out: seen.append((len(args[0]), len(read))))

    def images():
        for number in range(1100):
            read.append(number)
            yield data.test.x[number % len(data.test)]

    assert model.predict_proba(images()).shape == (1100, 3)
    assert seen == [(500, 500), (500, 1000), (100, 1100)]
    assert model.predict_proba([]).shape == (0, 3)
    assert model.predict([]) == []


def test_the_network_is_plain_and_loading_touches_no_random_state(image_run):
    path, data = image_run
    before = torch.get_rng_state()
    model = load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.network.modules())
    assert all(parameter.device.type == "cpu" for parameter in model.network.parameters())
    with torch.no_grad():
        probabilities = model.network(model.preprocess(data.test.x)).softmax(1)
    assert np.allclose(probabilities.numpy(), model.predict_proba(data.test.x), atol=1e-6)
    with pytest.raises(AttributeError):
        model.classes = ()


def test_a_run_that_is_not_finished_says_how_to_finish_it(tmp_path):
    RunDirectory.create(tmp_path / "r", tiny(), split_of(tiny(), rings()))
    with pytest.raises(RunError, match=r"r is not finished; resume it with: advdrop train --resume .*r$"):
        load(tmp_path / "r")
    with pytest.raises(RunError, match="nothing is not a run"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["model.json", "preprocess.safetensors", "model.safetensors"])
@pytest.mark.parametrize("how", ["edited", "cut off", "missing"])
def test_a_model_that_was_changed_is_refused_in_one_line(name, how, image_run, tmp_path):
    path = shutil.copytree(image_run[0], tmp_path / "r")
    file = path / name
    if how == "missing":
        file.unlink()
    elif how == "cut off":
        file.write_bytes(file.read_bytes()[:-1])
    elif name == "model.json":
        file.write_text(json.dumps(json.loads(file.read_text()) | {"scaling": "none"}))
    else:
        save_file({key: value + 1e-6 for key, value in load_file(file).items()}, file)
    with pytest.raises(RunError, match=rf"{name}.*; train the run again with --force$") as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["preprocess.safetensors", "model.safetensors"])
@pytest.mark.parametrize(
    "forge",
    [lambda t: t.double(), lambda t: t.half(), lambda t: t / 0, lambda t: t[None].expand(2, *t.shape).contiguous()],
)
def test_a_forged_model_that_cannot_be_right_is_refused(name, forge, image_run, tmp_path):
    """It has the digests of its content, as a stranger can make them."""
    path = shutil.copytree(image_run[0], tmp_path / "r")
    given = load_file(path / name) or {"mean": torch.zeros(1, 1, 1), "std": torch.ones(1, 1, 1)}
    save_file({key: forge(tensor) for key, tensor in given.items()}, path / name)
    result = json.loads((path / "result.json").read_text())
    RunDirectory.open(path).write_result({key: value for key, value in result.items() if key != "sha256"})
    with pytest.raises(RunError, match=rf"{name}: cannot be read .*; train the run again with --force$"):
        load(path)


@pytest.mark.parametrize("last", ["preprocess.safetensors", "model.json", "result.json"])
def test_a_kill_between_the_files_of_a_model_leaves_a_run_that_can_be_finished(last, image_run, tmp_path):
    path, data = shutil.copytree(image_run[0], tmp_path / "r"), image_run[1]
    (path / "result.json").unlink()
    (path / last).unlink(missing_ok=True)
    with pytest.raises(RunError, match="not finished"):
        load(path)
    train(RunDirectory(path).config, path, data=data, resume=True, progress=False)
    assert load(path).predict(data.test.x) == load(image_run[0]).predict(data.test.x)


def test_the_import_is_light():
    code = "import sys, advdrop.lab; assert 'torch' not in sys.modules; advdrop.lab.load; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
    with pytest.raises(AttributeError, match="no attribute 'loads'"):
        _ = advdrop.lab.loads


def test_stored_bytes_of_another_shape_are_arrays_only(tmp_path):
    y = torch.arange(30) % 3
    part = Examples((torch.rand(30, 6) * 255).byte(), y)
    data = DataSet("bytes", part, part, ("a", "b", "c"))
    train(tiny(data=data), tmp_path / "r", data=data, progress=False)
    model = load(tmp_path / "r")
    assert not model.takes_images
    assert np.array_equal(model.predict_proba(part.x), evaluated(tmp_path / "r", data))
    with pytest.raises(ValueError, match=r"takes uint8 arrays of shape \(6,\), not pictures"):
        model.predict("cat.png")
