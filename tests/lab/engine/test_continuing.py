"""Runs that go on: extended to more updates, or started with the weights of another run."""

import shutil
from dataclasses import replace

import pytest
import torch

from advdrop.lab.config.config import Earlier, Start
from advdrop.lab.data import DataSet, Examples
from advdrop.lab.engine import RunDirectory, rundir, train
from advdrop.lab.engine.companion import blended
from advdrop.lab.engine.continuing import load_start, names_of_head, start_of
from advdrop.lab.engine.rundir import RunError
from advdrop.lab.engine.seal import seal_of
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.records.record import record_of
from advdrop.schedules import learning_rate
from runs import rings, tiny


def done(path, config=None, data=None, **options):
    return train(config or tiny(data=data), path, data=data or rings(), progress=False, **options)


def extend(path, updates, **options):
    return done(path, RunDirectory.open(path).config, resume=True, updates=updates, **options)


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def stop_at(update):
    return lambda count: count >= update


def same_numbers(one, other):
    first, second = RunDirectory.open(one), RunDirectory.open(other)
    untimed = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()] for run in (first, second)]
    assert untimed[0] == untimed[1]
    weights = second.weights()
    return all(torch.equal(tensor, weights[name]) for name, tensor in first.weights().items())


# --- more updates


@pytest.mark.parametrize("preset", ["paper", "robust"])
def test_an_extended_run_is_what_its_configuration_says(tmp_path, preset):
    start = tiny("optimizer.ramp_down=0.5", "optimizer.learning_rate=0.01", preset=preset)
    done(tmp_path / "run", start)
    rows = RunDirectory.open(tmp_path / "run").metrics()
    result = extend(tmp_path / "run", 20)
    run = RunDirectory.open(tmp_path / "run")
    assert run.result == result
    assert (result["updates"], run.config.training.updates) == (20, 20)
    assert run.config.training.earlier == (Earlier(until=12, updates=12),)
    assert run.metrics()[: len(rows)] == rows
    rates = [row["learning_rate"] for row in run.metrics()]
    expected = [*(update / 12 for update in (3, 7, 11)), *(update / 20 for update in (15, 19))]
    assert rates == pytest.approx([learning_rate(progress, 0.01, 0.0, 0.5) for progress in expected])
    assert {path.name for path in run.path.iterdir()} <= rundir.FILES | {".lock"}
    assert not (run.path / "before").exists()
    assert record_of(run).updates == 20
    done(tmp_path / "fresh", run.config)  # the configuration is the whole story
    assert same_numbers(tmp_path / "run", tmp_path / "fresh")


def test_files_of_the_user_in_an_extended_run_stay(tmp_path):
    done(tmp_path / "run")
    mine = {"notes.txt": b"mine", ".hidden": b"too", "figures/a.svg": b"<svg/>"}
    for name, content in mine.items():
        (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "run" / name).write_bytes(content)
    (tmp_path / "run" / "link").symlink_to("nowhere")
    extend(tmp_path / "run", 14)
    assert mine.items() <= files(tmp_path / "run").items()
    assert (tmp_path / "run" / "link").is_symlink()


def test_until_there_is_a_new_result_the_old_one_stays(tmp_path, capsys):
    done(tmp_path / "run")
    old = files(tmp_path / "run")
    config = RunDirectory.open(tmp_path / "run").config
    with pytest.raises(StoppedError, match="resume with: advdrop train --resume"):
        train(config, tmp_path / "run", data=rings(), resume=True, updates=20, tell=stop_at(15))
    assert (
        f"the result of 12 updates stays in {tmp_path / 'run/before'} until there is a new one"
        in capsys.readouterr().err
    )
    before = RunDirectory.open(tmp_path / "run/before")
    assert before.finished
    assert {name: old[name] for name in files(before.path)} == files(before.path)
    assert before.result["updates"] == 12
    assert before.weights()
    assert not RunDirectory.open(tmp_path / "run").finished
    extend(tmp_path / "run", 20)  # the same command continues
    assert not before.path.exists()
    done(tmp_path / "whole")
    extend(tmp_path / "whole", 20)
    assert same_numbers(tmp_path / "run", tmp_path / "whole")


def test_a_stopped_extension_may_be_resumed_without_its_length_or_extended_again(tmp_path):
    done(tmp_path / "run")
    with pytest.raises(StoppedError):
        extend(tmp_path / "run", 20, tell=stop_at(14))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    done(tmp_path / "run", RunDirectory.open(tmp_path / "run").config, resume=True)
    with pytest.raises(StoppedError):
        extend(tmp_path / "other", 28, tell=stop_at(21))
    assert RunDirectory.open(tmp_path / "other/before").result["updates"] == 12
    extend(tmp_path / "other", 28)
    parts = [(part.until, part.updates) for part in RunDirectory.open(tmp_path / "other").config.training.earlier]
    assert parts == [(12, 12), (14, 20)]


def test_a_run_that_is_not_finished_may_be_extended(tmp_path):
    with pytest.raises(StoppedError):
        done(tmp_path / "run", tell=stop_at(6))
    extend(tmp_path / "run", 20)
    run = RunDirectory.open(tmp_path / "run")
    assert run.config.training.earlier == (Earlier(until=6, updates=12),)
    done(tmp_path / "fresh", run.config)
    assert same_numbers(tmp_path / "run", tmp_path / "fresh")
    with pytest.raises(StoppedError):
        done(tmp_path / "none", tell=stop_at(1))
    (tmp_path / "none/last.ckpt").unlink()  # killed before its first checkpoint
    extend(tmp_path / "none", 16)
    assert RunDirectory.open(tmp_path / "none").config.training.earlier == ()


@pytest.mark.parametrize("updates", [1, 11, 12])
def test_a_run_cannot_be_made_shorter(tmp_path, updates):
    done(tmp_path / "run")
    old = files(tmp_path / "run")
    with pytest.raises(RunError, match="has 12 updates; to extend it, --updates must be larger"):
        extend(tmp_path / "run", updates)
    assert files(tmp_path / "run") == old


@pytest.mark.parametrize("step", ["exchange", "save_checkpoint", "copy2"])
def test_an_extension_that_fails_leaves_the_run_as_it_was(tmp_path, monkeypatch, step):
    done(tmp_path / "run")
    old = files(tmp_path / "run")

    def full(*_):
        raise OSError(28, "No space left on device")

    place = {"exchange": rundir, "save_checkpoint": RunDirectory, "copy2": rundir.shutil}[step]
    monkeypatch.setattr(place, step, full)
    with pytest.raises(RunError, match="No space left on device"):
        extend(tmp_path / "run", 20)
    monkeypatch.undo()
    assert files(tmp_path / "run") == old
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert RunDirectory.open(tmp_path / "run").finished


def test_a_checkpoint_of_before_does_not_fit_the_extended_run(tmp_path):
    done(tmp_path / "run")
    old = (tmp_path / "run/last.ckpt").read_bytes()
    with pytest.raises(StoppedError):
        extend(tmp_path / "run", 20, tell=stop_at(14))
    (tmp_path / "run/last.ckpt").write_bytes(old)
    with pytest.raises(RunError, match="is damaged or belongs to another run"):
        extend(tmp_path / "run", 20)


def test_a_finished_run_without_its_checkpoint_cannot_be_extended(tmp_path):
    done(tmp_path / "run")
    (tmp_path / "run/last.ckpt").unlink()
    with pytest.raises(RunError, match=r"last\.ckpt is missing; start another run with --from"):
        extend(tmp_path / "run", 20)


# --- another run's weights


def four_classes():
    """Other data, with other classes."""
    draw = torch.Generator().manual_seed(3)
    y = torch.arange(40) % 4
    x = torch.randn(40, 6, generator=draw) + y[:, None]
    return DataSet("four", Examples(x, y), Examples(x, y), ("p", "q", "r", "s"))


def started(path, data, *settings, **options):
    config = tiny(*settings, data=data, **options)
    return config.model_copy(update={"start": start_of(path), "dataset": data.name})


def test_all_weights_but_those_of_the_last_layer_are_taken(tmp_path):
    done(tmp_path / "run")
    data = four_classes()
    config = started(tmp_path / "run", data)
    network = blended(config, data.shape, 4)
    new = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    head = names_of_head(config, data)
    assert head == {name for name in new if new[name].shape[0] == 4}
    assert len(head) == 2
    said = load_start(network, config, data)
    assert said == f"starts with the weights of {tmp_path / 'run'}; the last layer is new, for 4 classes"
    weights = RunDirectory.open(tmp_path / "run").weights()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, new[name] if name in head else weights[name])


def test_the_last_layer_is_taken_if_the_classes_are_the_same(tmp_path):
    done(tmp_path / "run")
    weights = RunDirectory.open(tmp_path / "run").weights()
    for classes, same in (("abc", True), ("abd", False)):
        data = replace(rings(), classes=tuple(classes))
        config = started(tmp_path / "run", data)
        network = blended(config, data.shape, 3)
        assert ("last layer is new" in load_start(network, config, data)) != same
        assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items()) == same


@pytest.mark.parametrize("same_data", [True, False])
def test_a_companion_must_not_know_the_labels_that_measure_it(tmp_path, same_data):
    done(tmp_path / "run", tiny(preset="robust"))
    data = rings() if same_data else four_classes()
    config = started(tmp_path / "run", data, preset="robust")
    network, weights = blended(config, data.shape, len(data.classes)), RunDirectory.open(tmp_path / "run").weights()
    said = load_start(network, config, data)
    assert ("the companion is new" in said) == same_data
    found = network.state_dict()
    first = next(iter(network.main.state_dict()))
    assert torch.equal(found[f"main.{first}"], weights[f"main.{first}"])
    assert torch.equal(found[f"companion.{first}"], weights[f"companion.{first}"]) != same_data


def test_with_and_without_a_companion(tmp_path):
    done(tmp_path / "blend", tiny(preset="robust"))
    done(tmp_path / "plain", tiny(preset="paper"))
    data = four_classes()
    for old, preset, prefix in (("blend", "paper", "main."), ("plain", "robust", "")):
        config = started(tmp_path / old, data, preset=preset)
        network, weights = blended(config, data.shape, 4), RunDirectory.open(tmp_path / old).weights()
        said = load_start(network, config, data)
        main = network.main if preset == "robust" else network
        first, tensor = next(iter(main.state_dict().items()))
        assert torch.equal(tensor, weights[prefix + first])
        assert ("the companion is new" in said) == (preset == "robust")


def test_data_that_have_changed_are_told(tmp_path):
    done(tmp_path / "run")
    config = started(tmp_path / "run", rings()).model_copy(update={"dataset": "rings"})
    data = rings(train=66)
    said = load_start(blended(config, data.shape, 3), config, data)
    assert said.endswith("what is for testing now may have been for training")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["network.hidden=[16,13]"], r"whose .* is \(12,.*here it is \(13,.*needs the same settings of the network"),
        (["network.hidden=[16]"], "needs the same settings of the network"),
    ],
)
def test_another_network_is_refused_before_anything_is_written(tmp_path, settings, message):
    done(tmp_path / "run")
    data = four_classes()
    with pytest.raises(RunError, match=message):
        done(tmp_path / "next", started(tmp_path / "run", data, *settings), data)
    assert not (tmp_path / "next").exists()


def test_a_network_of_another_name_is_refused(tmp_path):
    done(tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    config = tiny().model_copy(update={"start": start_of(run.path)})
    other = config.model_copy(update={"network": config.network.model_copy(update={"name": "all-cnn"})})
    with pytest.raises(RunError, match="has the network mlp, not all-cnn; --from needs the same network"):
        load_start(blended(config, (6,), 3), other, rings())


def test_a_run_that_is_not_finished_cannot_be_started_from(tmp_path):
    with pytest.raises(StoppedError):
        done(tmp_path / "run", tell=stop_at(2))
    with pytest.raises(RunError, match="is not finished; resume it with"):
        start_of(tmp_path / "run")


def test_a_run_that_is_resumed_before_its_first_checkpoint_starts_with_the_same_weights(tmp_path):
    done(tmp_path / "run")
    data = four_classes()
    config = started(tmp_path / "run", data)
    done(tmp_path / "whole", config, data)
    with pytest.raises(StoppedError):
        done(tmp_path / "cut", config, data, tell=stop_at(1))
    (tmp_path / "cut/last.ckpt").unlink()
    resumed = RunDirectory.open(tmp_path / "cut").config
    shutil.move(tmp_path / "run", tmp_path / "away")
    with pytest.raises(RunError, match="run is not a run"):
        done(tmp_path / "cut", resumed, data, resume=True)
    done(tmp_path / "run", tiny("optimizer.learning_rate=0.1"))
    with pytest.raises(RunError, match="has other weights than those that this run starts with"):
        done(tmp_path / "cut", resumed, data, resume=True)
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "away", tmp_path / "run")
    done(tmp_path / "cut", resumed, data, resume=True)
    assert same_numbers(tmp_path / "cut", tmp_path / "whole")


def test_the_place_of_the_first_run_is_not_part_of_the_seal(tmp_path):
    done(tmp_path / "run")
    config, split = started(tmp_path / "run", rings()), RunDirectory.open(tmp_path / "run").split

    def seal(start):
        return seal_of({**config.model_dump(mode="json"), "start": start.model_dump(mode="json")}, split)

    there = Start(run="/elsewhere", sha256=config.start.sha256)
    assert seal(config.start) == seal(there) != seal(Start(run=config.start.run, sha256="0"))
