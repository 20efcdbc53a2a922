import gc
import json
import signal
import threading
import weakref
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from advdrop import AdversarialDropout, CrossEntropy, Ramp, Step, VAdD, schedules
from advdrop.lab.config.methods import network_of
from advdrop.lab.data.batches import Augment, Batches, LabelSplit
from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.engine import run as engine_run
from advdrop.lab.engine.evaluate import error_percent
from advdrop.lab.engine.loop import DivergedError
from advdrop.lab.engine.model import load
from advdrop.lab.engine.run import preprocess_of, split_of
from advdrop.lab.engine.rundir import RunError
from advdrop.lab.engine.signals import StoppedError
from advdrop.lab.engine.training import PartialLoss, Training
from advdrop.randomness import derived_seed
from runs import rings, tiny

MODEL = {"model.safetensors", "preprocess.safetensors", "model.json"}
COLUMNS = {
    "dropout": ["cross_entropy"],
    "at": ["cross_entropy", "at"],
    "vat": ["cross_entropy", "vat"],
    "pi": ["cross_entropy", "pi_model"],
    "temporal": ["cross_entropy", "temporal_ensembling"],
    "sajjadi": ["cross_entropy", "transformation_stability"],
    "sadd": ["cross_entropy", "sadd_cross_entropy"],
    "vadd-kl": ["cross_entropy", "vadd_kl"],
    "vadd-qe": ["cross_entropy", "vadd_qe"],
    "no-flips": ["cross_entropy", "vadd_qe"],
    "gamma": ["cross_entropy", "gamma"],
    "ladder": ["cross_entropy", "denoising_cost"],
    "catgan": ["cross_entropy", "catgan", "categorical_generator"],
    "gan-fm": ["cross_entropy", "fake_class", "feature_matching"],
    "dsn": ["cross_entropy", "deep_supervision"],
    "vadd-kl+vat": ["cross_entropy", "vadd_kl", "vat"],
    "mean-teacher": ["cross_entropy", "mean_teacher"],
    "r-drop": ["rdrop"],
    "fraternal": ["fraternal_dropout"],
}


def run(path, *settings, data=None, method="vadd-kl", labels=12, **options):
    data = data or rings()
    config = tiny(*settings, data=data, method=method, labels=labels)
    return train(config, path, data=data, progress=False, **options)


def timeless(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def weights(path):
    return load_file(path / "model.safetensors")


def same_run(one, other):
    assert timeless(RunDirectory(one).metrics()) == timeless(RunDirectory(other).metrics())
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


class StopAtError(Exception):
    """What a test stops a training with, as hard as a process can be stopped from inside."""


def killed_at(monkeypatch, update):
    """The training loses everything that is not on the disk when it begins this update."""
    begin = Training.update

    def stop(self, number):
        if number == update:
            raise StopAtError
        begin(self, number)

    monkeypatch.setattr(Training, "update", stop)


def test_a_ladder_of_another_network_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError, match="need the network ladder, got Sequential"):
        run(tmp_path / "run", method="ladder")
    assert not (tmp_path / "run").exists()


def test_a_run_directory_holds_what_the_issue_names(tmp_path):
    result = run(tmp_path / "r")
    found = RunDirectory.open(tmp_path / "r")
    names = {path.name for path in found.path.iterdir()} - {".lock"}
    assert names == {"config.yaml", "split.npz", "metrics.csv", "result.json", "last.ckpt", *MODEL}
    assert result == found.result == json.loads((found.path / "result.json").read_text())
    assert result["updates"] == 12
    assert result["labels"] == 12
    assert (result["method"], result["dataset"], result["seed"]) == ("vadd-kl", "rings", 0)
    assert 0 < result["milliseconds_per_update"] * 12 / 1000 <= result["seconds"]
    assert {"torch", "python", "advdrop"} <= result["versions"].keys()
    assert {"lightning", "lightning-fabric"} & result["versions"].keys()
    assert result["machine"]["threads"] == torch.get_num_threads()
    rows = found.metrics()
    assert [(row["epoch"], row["update"]) for row in rows] == [(1, 4), (2, 8), (3, 12)]
    assert rows[-1]["test/error_percent"] == result["test_error_percent"]
    assert 0 < rows[0]["search/vadd_kl/flips"] <= 3
    assert rows[0]["search/vadd_kl/jacobian_norm"] > 0
    assert (result["precision"], result["memory_format"]) == ("32", "contiguous")
    assert found.config == tiny("engine.memory_format=contiguous")


def test_the_recorded_error_is_that_of_the_saved_weights(tmp_path):
    data = rings()
    result = run(tmp_path / "r", data=data)
    network = load(tmp_path / "r").network
    assert not network.training
    config = RunDirectory(tmp_path / "r").config
    assert (
        error_percent(network, data.test, preprocess_of(config, data, split_of(config, data)))
        == result["test_error_percent"]
    )


def test_the_engine_computes_what_a_bare_loop_computes(tmp_path):
    data = rings()
    config = tiny("data.noise=0.1", data=data)
    train(config, tmp_path / "r", data=data, progress=False)

    torch.manual_seed(derived_seed(0, "initialisation"))
    network = network_of(config, data.shape, 3)
    step = Step(network, CrossEntropy() + Ramp(1.0, 0.3) * VAdD(delta=0.25))
    batches = Batches(
        data.train,
        split_of(config, data),
        4,
        8,
        preprocess_of(config, data, split_of(config, data)),
        Augment(noise=0.1),
    )
    adam = torch.optim.Adam(network.parameters(), fused=True)
    for update in range(12):
        t = update / 12
        adam.param_groups[0]["lr"] = schedules.learning_rate(t, 0.001, 0.0, 0.3)
        adam.param_groups[0]["betas"] = (schedules.adam_beta1(t, 0.3), 0.999)
        torch.manual_seed(derived_seed(0, "noise", update, 0))
        adam.zero_grad()
        step(**batches.at(update).arguments(), progress=t).loss.backward()
        adam.step()
    saved = weights(tmp_path / "r")
    assert all(torch.equal(saved[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("method", COLUMNS)
def test_every_named_method_trains_and_resumes_bit_by_bit(method, tmp_path, monkeypatch):
    settings = ["network={name: ladder, hidden: [16, 12]}"] if method == "ladder" else []
    run(tmp_path / "whole", *settings, method=method)
    with monkeypatch.context() as patch:
        killed_at(patch, 6)  # in the middle of an epoch
        with pytest.raises(StopAtError):
            run(tmp_path / "cut", *settings, method=method)
    assert not RunDirectory(tmp_path / "cut").finished
    torch.manual_seed(99)  # nothing depends on where the global generator stands
    run(tmp_path / "cut", *settings, method=method, resume=True)
    same_run(tmp_path / "whole", tmp_path / "cut")
    columns = {name for name in RunDirectory(tmp_path / "cut").metrics()[0] if name.startswith("train/")}
    assert columns == {"train/loss", *(f"train/{name}" for name in COLUMNS[method])}


@pytest.mark.parametrize("settings", [("engine.accumulate=2",), ("optimizer.ramp_up=0.4", "engine.clip=0.5")])
def test_resuming_is_exact_wherever_it_was_cut(settings, tmp_path, monkeypatch):
    run(tmp_path / "whole", *settings, method="temporal+vadd-qe")
    for update in (0, 1, 3, 4, 11):
        cut = tmp_path / str(update)
        with monkeypatch.context() as patch:
            killed_at(patch, update)
            with pytest.raises(StopAtError):
                run(cut, *settings, method="temporal+vadd-qe")
        run(cut, *settings, method="temporal+vadd-qe", resume=True)
        same_run(tmp_path / "whole", cut)


def test_a_run_cut_before_its_result_is_finished_without_training(tmp_path, monkeypatch):
    run(tmp_path / "r")
    before = weights(tmp_path / "r")
    (tmp_path / "r" / "result.json").unlink()
    (tmp_path / "r" / "model.safetensors").unlink()
    monkeypatch.setattr(Training, "update", lambda *_: pytest.fail("there is nothing left to train"))
    run(tmp_path / "r", resume=True)
    assert all(torch.equal(before[name], value) for name, value in weights(tmp_path / "r").items())


def test_batch_norm_statistics_are_resumed(tmp_path, monkeypatch):
    def network(*_):
        return nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), AdversarialDropout(0.5, 0.3), nn.Linear(8, 3)
        )

    monkeypatch.setattr(engine_run, "blended", network)
    run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        killed_at(patch, 5)
        with pytest.raises(StopAtError):
            run(tmp_path / "cut")
    run(tmp_path / "cut", resume=True)
    same_run(tmp_path / "whole", tmp_path / "cut")
    assert weights(tmp_path / "cut")["1.num_batches_tracked"] > 0


def test_accumulated_parts_are_the_whole_batch(tmp_path):
    quiet = ("network.dropout=0", "network.p=0", "engine.clip=0.01")
    for name, parts in (("one", 1), ("two", 2)):
        run(tmp_path / name, *quiet, f"engine.accumulate={parts}", method="sadd+temporal")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


def test_a_seed_changes_the_split_the_weights_and_the_noise(tmp_path):
    data = rings()
    first, second = (tiny(data=data).model_copy(update={"seed": seed}) for seed in (0, 1))
    assert not torch.equal(split_of(first, data).labeled, split_of(second, data).labeled)
    train(first, tmp_path / "0", data=data, progress=False)
    train(second, tmp_path / "1", data=data, progress=False)
    assert timeless(RunDirectory(tmp_path / "0").metrics()) != timeless(RunDirectory(tmp_path / "1").metrics())


def test_the_global_generator_is_left_as_it_was(tmp_path):
    before = torch.get_rng_state()
    run(tmp_path / "r")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_existing_run_is_never_mixed_or_replaced_unasked(tmp_path):
    run(tmp_path / "r")
    before = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}
    with pytest.raises(RunError, match="exists; resume it"):
        run(tmp_path / "r")
    with pytest.raises(RunError, match="is finished"):
        run(tmp_path / "r", resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()} == before
    run(tmp_path / "r", "training.updates=4", force=True)
    assert RunDirectory(tmp_path / "r").result["updates"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_bad_labels_leave_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="class a, which has 20"):
        run(tmp_path / "r", labels=90)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_a_signal_saves_stops_and_says_how_to_go_on(name, tmp_path):
    number = getattr(signal, name)
    run(tmp_path / "whole")
    forward = PartialLoss.forward

    def interrupted(self, update, turn):
        if update == 5:
            signal.raise_signal(number)
        return forward(self, update, turn)

    before = signal.getsignal(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialLoss, "forward", interrupted)
        # Nothing but the signal may have saved the checkpoint.
        with pytest.raises(StoppedError, match=r"stopped after update 6 of 12; resume with: advdrop train --resume"):
            run(tmp_path / "cut", "engine.checkpoint_seconds=1e6")
    assert signal.getsignal(number) is before
    found = RunDirectory(tmp_path / "cut").load_checkpoint()
    assert found["update"] == 6
    run(tmp_path / "cut", "engine.checkpoint_seconds=1e6", resume=True)
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_training_works_outside_the_main_thread(tmp_path):
    thread = threading.Thread(target=run, args=(tmp_path / "r", "training.updates=4"))
    thread.start()
    thread.join()
    assert RunDirectory(tmp_path / "r").finished


@pytest.mark.parametrize(
    ("method", "term"), [("dropout", "cross_entropy"), ("vadd-kl", "vadd_kl|cross_entropy"), ("vat", "cross_entropy")]
)
def test_a_loss_that_blows_up_names_the_update_the_term_and_the_checkpoint(method, term, tmp_path):
    settings = ("optimizer.learning_rate=1e30", "optimizer.ramp_down=0")
    with pytest.raises(DivergedError, match=rf"^update [1-9]: .*({term})") as caught:
        run(tmp_path / "r", *settings, method=method)
    good = RunDirectory(tmp_path / "r").load_checkpoint()
    assert str(tmp_path / "r" / "last.ckpt") in str(caught.value)
    assert good["update"] <= int(str(caught.value).split()[1].rstrip(":"))
    assert all(value.isfinite().all() for value in good["network"].values())
    assert not RunDirectory(tmp_path / "r").finished


def test_supervised_learning_has_one_stream_and_runs_every_term_on_it(tmp_path):
    result = run(tmp_path / "r", "training.unlabeled=0", method="vadd-kl+temporal", labels="all")
    assert result["labels"] == "all"
    split = LabelSplit.load(tmp_path / "r" / "split.npz")
    assert (len(split.labeled), len(split.unlabeled)) == (60, 0)
    assert RunDirectory(tmp_path / "r").metrics()[-1]["train/temporal_ensembling"] >= 0


def test_validation_rows_are_seen_by_no_step_and_are_measured(tmp_path):
    result = run(tmp_path / "r", "data.validation=6")
    split = RunDirectory(tmp_path / "r").split
    assert not set(split.validation.tolist()) & set(split.labeled.tolist() + split.unlabeled.tolist())
    assert result["validation_error_percent"] == RunDirectory(tmp_path / "r").metrics()[-1]["validation/error_percent"]


def test_validation_rows_have_no_part_in_the_preprocessing():
    data = rings()
    config = tiny("data.validation=6", data=data)
    split = split_of(config, data)
    kept = torch.tensor([row for row in range(60) if row not in split.validation.tolist()])
    mean = preprocess_of(config, data, split).mean
    assert torch.allclose(mean, data.train.x[kept].mean(0), atol=1e-6)
    assert not torch.allclose(mean, data.train.x.mean(0), atol=1e-4)


def test_a_run_is_resumed_with_its_own_data_and_configuration_only(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(StopAtError):
            run(tmp_path / "r")
    with pytest.raises(RunError, match="was trained on other data than this rings: their checksums differ"):
        run(tmp_path / "r", data=rings(train=63), resume=True)
    with pytest.raises(RunError, match=r"was started with another network\.delta; resume it as it was"):
        run(tmp_path / "r", "network.delta=0.3", resume=True)


@pytest.mark.parametrize(
    ("old", "new"), [("seed: 0", "seed: 1"), ("updates: 12", "updates: 8"), ("rate: 0.001", "rate: 0.1")]
)
def test_a_run_whose_configuration_was_edited_is_not_resumed(old, new, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(StopAtError):
            run(tmp_path / "r")
    file = tmp_path / "r" / "config.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(
        RunError, match=r"config\.yaml or split\.npz was changed after the start of the run; put it back"
    ):
        train(RunDirectory.open(tmp_path / "r").config, tmp_path / "r", resume=True, data=rings(), progress=False)


def test_evaluations_are_as_rare_as_asked(tmp_path):
    run(tmp_path / "r", "training.evaluate_every=0")
    assert ["test/error_percent" in row for row in RunDirectory(tmp_path / "r").metrics()] == [False, False, True]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("clip", [0, 1])
def test_half_precision_trains_and_resumes_bit_by_bit(precision, clip, tmp_path, monkeypatch):
    settings = (f"engine.precision={precision}", f"engine.clip={clip}", "network.dropout=0")
    seen = []
    linear = nn.Linear.forward

    def watched(self, x):
        seen.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return linear(self, x)

    monkeypatch.setattr(nn.Linear, "forward", watched)
    result = run(tmp_path / "whole", *settings)
    # It is evaluated in full precision.
    assert set(seen) == {torch.bfloat16 if precision == "bf16" else torch.float16, None}
    assert result["precision"] == precision
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "whole").values())
    with monkeypatch.context() as patch:
        killed_at(patch, 5)
        with pytest.raises(StopAtError):
            run(tmp_path / "cut", *settings)
    scaler = RunDirectory(tmp_path / "cut").load_checkpoint()["precision"]
    assert ("scale" in scaler) == (precision == "fp16")
    run(tmp_path / "cut", *settings, resume=True)
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_layer_that_was_frozen_stays_frozen(tmp_path, monkeypatch):
    frozen = nn.BatchNorm1d(8).eval()
    network = nn.Sequential(nn.Linear(6, 8), frozen, nn.ReLU(), AdversarialDropout(0.5, 0.3), nn.Linear(8, 3))
    monkeypatch.setattr(engine_run, "blended", lambda *_: network)
    run(tmp_path / "r")  # it evaluates after each of three epochs
    assert not frozen.training
    assert network.training
    assert frozen.num_batches_tracked == 0


def test_tensorboard_is_written_when_asked(tmp_path):
    pytest.importorskip("tensorboard")
    run(tmp_path / "r", "engine.tensorboard=true")
    assert list((tmp_path / "r" / "tensorboard").glob("events*"))


@pytest.mark.parametrize("way", ["resume", "force"])
def test_a_run_that_is_being_trained_is_neither_resumed_nor_replaced(tmp_path, monkeypatch, way):
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(StopAtError):
            run(tmp_path / "r")
    with RunDirectory(tmp_path / "r").locked(), pytest.raises(RunError, match="another process"):
        run(tmp_path / "r", **{way: True})
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
    assert RunDirectory(tmp_path / "r").load_checkpoint()["update"] == 2


def test_a_result_names_every_commit_it_was_computed_by(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_run, "commit", lambda: "first")
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(StopAtError):
            run(tmp_path / "r")
    monkeypatch.setattr(engine_run, "commit", lambda: "second")
    result = run(tmp_path / "r", resume=True)
    assert result["commit"] == "second"
    assert [origin["commit"] for origin in result["earlier"]] == ["first"]


def test_more_processes_than_were_asked_for_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes were started for 1; say so with --devices"):
        run(tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, monkeypatch):
    save = RunDirectory.save_checkpoint

    def full(self, state):
        if state["update"] == 7:
            raise OSError("no space left on device")
        save(self, state)

    run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save_checkpoint", full)
        with pytest.raises(RuntimeError, match="no space left on device; solve this, then resume with: advdrop train"):
            run(tmp_path / "cut")
    run(tmp_path / "cut", resume=True)
    same_run(tmp_path / "whole", tmp_path / "cut")


def test_memory_that_is_not_there_is_told_with_the_way_out(tmp_path, monkeypatch):
    def full(self, update, turn):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a ...")

    monkeypatch.setattr(PartialLoss, "forward", full)
    said = r"not enough memory: 2\.1 GB were needed at once; make room, then resume with: advdrop train --resume .*r$"
    with pytest.raises(RuntimeError, match=said):
        run(tmp_path / "r")


def test_a_checkpoint_that_is_no_checkpoint_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(StopAtError):
            run(tmp_path / "r")
    (tmp_path / "r" / "last.ckpt").write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"last.ckpt: cannot be read .*; delete it to start the run again"):
        run(tmp_path / "r", resume=True)


@pytest.mark.parametrize("part", ["labeled", "unlabeled", "validation"])
def test_a_split_that_does_not_fit_the_data_is_refused(part, tmp_path):
    """The run has the seal of its content, as a stranger can make it."""
    data, config = rings(), tiny()
    split = replace(split_of(config, data), **{part: torch.tensor([3, 10**8])})
    RunDirectory.create(tmp_path / "r", config, split)
    said = r"split\.npz: cannot be read \(ValueError: it has row 100000000, and there are 60 training examples\); train"
    with pytest.raises(RunError, match=said):
        run(tmp_path / "r", resume=True)


def test_a_labeled_row_without_a_label_is_refused(tmp_path):
    data = rings()
    data.train.y[7] = -1
    split = replace(split_of(tiny(), data), labeled=torch.tensor([3, 7]))
    RunDirectory.create(tmp_path / "r", tiny(), split)
    with pytest.raises(RunError, match=r"split\.npz: .*one of its labeled rows has no label"):
        train(tiny(), tmp_path / "r", data=data, resume=True, progress=False)


@pytest.mark.parametrize("part", ["network", "optimizer", "metrics", "trust"])
def test_a_checkpoint_that_does_not_fit_the_network_is_refused(part, tmp_path, monkeypatch):
    """It has the digest of its content, as a stranger can make it."""
    with monkeypatch.context() as patch:
        killed_at(patch, 2)
        with pytest.raises(StopAtError):
            run(tmp_path / "r")
    there = RunDirectory.open(tmp_path / "r")
    state = there.load_checkpoint()
    wrong = {"network": {name: torch.zeros(3) for name in state["network"]}, "optimizer": {}, "metrics": [{"x": 1}]}
    forged = {**state, part: wrong[part]} if part in wrong else {key: state[key] for key in state if key != part}
    there.save_checkpoint(forged)
    with pytest.raises(RunError, match=r"last.ckpt: cannot be read .*; delete it to start the run again"):
        run(tmp_path / "r", resume=True)


@pytest.mark.parametrize("method", ["vadd-kl", "catgan"])
def test_a_finished_training_leaves_the_memory_at_once(tmp_path, monkeypatch, method):
    made, begin = [], Batches.__post_init__

    def watched(self):
        begin(self)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Batches, "__post_init__", watched)
    gc.disable()  # it would come much later: it counts objects, not their size
    try:
        for name in ("first", "second"):  # what torch imports in the first run of a process keeps its frames
            run(tmp_path / name, method=method)
        assert made[1]() is None
    finally:
        gc.enable()
