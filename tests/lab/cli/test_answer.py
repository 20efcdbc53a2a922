"""``advdrop train`` and ``advdrop compare`` say whether the unlabeled examples helped."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from advdrop.lab.cli.answer import LARGEST, answer_of, answer_of_run, thumbnail, unlabeled_images, uses_unlabeled
from advdrop.lab.cli.main import main
from advdrop.lab.data import load
from advdrop.lab.data.batches import split_labels
from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.engine.finished import evaluate_run
from advdrop.lab.engine.rundir import RunError
from advdrop.lab.report.answer import read_answer
from runs import rings, tiny

TINY = [
    "--set", "network.name=mlp", "--set", "network.hidden=[16,8]", "--set", "network.delta=0.3",
    "--set", "training.epoch_updates=20", "--set", "objective.blend=0",
    "--set", "engine.accelerator=cpu", "--set", "engine.checkpoint_seconds=1e6", "--quiet",
]  # fmt: skip


@pytest.fixture
def own():
    """Small gray images in two classes, 12 with a label and 40 without, in an .npz file."""
    draw = np.random.default_rng(0)

    def images(labels):
        x = draw.integers(0, 200, (len(labels), 8, 8), dtype=np.uint8)
        x[labels == 1, :, 4:] //= 2
        return x

    known, test, others = np.arange(12) % 2, np.arange(30) % 2, np.arange(40) % 2
    y = np.concatenate([known, np.full(40, -1)])
    np.savez("own.npz", x_train=images(np.concatenate([known, others])), y_train=y, x_test=images(test), y_test=test)
    return ["--dataset", "own.npz", "--labels", "all", "--updates", "40", *TINY]


def test_compare_adds_the_labels_alone_and_answers(own, capsys):
    assert main(["compare", *own, "--methods", "pi", "--seeds", "2", "--jobs", "1", "--out", "c"]) == 0
    said = capsys.readouterr()
    assert "dropout, which learns from the labels alone, is added to the methods" in said.err
    assert list(json.loads(Path("c/compare.json").read_text())) == ["dropout", "pi"]
    answer = read_answer(Path("c/answer.json"))
    assert said.out.endswith(f"\n{answer.text}\n")
    assert "40 unlabeled examples" in answer.text
    assert (answer.method, answer.baseline, answer.labeled, answer.seeds) == ("pi", "dropout", 12, 2)
    errors = {m: [evaluate_run(Path(f"c/{m}-{s}"))["test_error_percent"] for s in (0, 1)] for m in ("dropout", "pi")}
    assert answer.error_percent == pytest.approx(np.mean(errors["pi"]))
    assert answer.baseline_error_percent == pytest.approx(np.mean(errors["dropout"]))
    assert answer.difference == pytest.approx(answer.baseline_error_percent - answer.error_percent)
    confusion = np.array(answer.confusion)
    assert confusion.sum(1).tolist() == [30, 30]  # 15 of each class, two seeds
    assert 100 - 100 * np.trace(confusion) / 60 == pytest.approx(answer.error_percent)
    first = errors["dropout"][0] - errors["pi"][0]
    assert answer.right_now - answer.wrong_now == pytest.approx(first * 30 / 100)
    page = Path("c/report.html").read_text()
    assert "do the unlabeled examples help?" in page
    assert page.count("<img") == len(answer.changed)
    main(["report", "c", "-o", "again.html"])
    again = Path("again.html").read_text()
    assert again.count("<img") == len(answer.changed)
    assert answer.text.split(":")[0] in page
    assert answer.text.split(":")[0] in again


def test_runs_on_data_that_have_changed_are_not_used_again(own, capsys, tmp_path):
    words = ["compare", *own, "--jobs", "1", "--out", "c"]
    assert main([*words, "--methods", "pi"]) == 0
    old = RunDirectory.open(Path("c/dropout-0")), RunDirectory.open(Path("c/pi-0"))
    with np.load("own.npz") as arrays:  # what was for training is for testing now
        np.savez("own.npz", **{**arrays, "x_test": arrays["x_train"][:12], "y_test": arrays["y_train"][:12]})
    capsys.readouterr()
    assert main([*words, "--methods", "pi,vat"]) == 2
    said = (
        f"c/dropout-0 is a run on other data: {tmp_path}/own.npz has changed since; delete it or choose another --out"
    )
    assert capsys.readouterr().err.splitlines()[-1] == f"advdrop: {said}"
    assert not Path("c/vat-0").exists()
    for compute in (lambda: answer_of([old], load("own.npz"), progress=False), lambda: answer_of_run(old[1])):
        with pytest.raises(RunError, match="was trained on other data"):
            compute()
    assert not Path("c/pi-0-baseline").exists()


def test_compare_does_not_answer_for_a_method_with_another_network(own, capsys):
    words = [word for word in own[: own.index("--set")] if word != "40"]
    words = ["compare", *words, "4", "--jobs", "1", "--quiet", "--preset", "paper"]
    assert main([*words, "--methods", "pi,ladder", "--out", "c"]) == 0
    answer, said = read_answer(Path("c/answer.json")), capsys.readouterr()
    assert answer.method == "pi"
    assert answer.text in said.out
    assert "ladder has other settings of data, network, optimizer, training than dropout" in said.err
    assert "pi has other" not in said.err
    assert main([*words, "--methods", "ladder", "--out", "d"]) == 0
    assert "unlabeled examples" not in capsys.readouterr().out
    assert not Path("d/answer.json").exists()
    assert "which method has the lowest error?" in Path("d/report.html").read_text()


def test_compare_of_a_known_data_set_adds_nothing(capsys):
    words = ["--dataset", "digits", "--labels", "20", "--updates", "4", *TINY]
    assert main(["compare", *words, "--methods", "pi", "--jobs", "1", "--out", "c"]) == 0
    said = capsys.readouterr()
    assert "unlabeled" not in said.out + said.err
    assert not Path("c/answer.json").exists()


def test_no_unlabeled_images_no_sentence(own, capsys):
    with np.load("own.npz") as arrays:
        rows = arrays["y_train"] >= 0
        np.savez("own.npz", **{**arrays, "x_train": arrays["x_train"][rows], "y_train": arrays["y_train"][rows]})
    assert main(["compare", *own, "--methods", "pi", "--jobs", "1", "--out", "c"]) == 0
    assert main(["train", "first", *own, "--method", "pi"]) == 0
    assert "unlabeled" not in capsys.readouterr().out
    assert not Path("c/answer.json").exists()
    assert not Path("runs/first-baseline").exists()


def test_unlabeled_images_that_no_batch_has_are_not_said_to_help(own, capsys):
    words = [*own, "--method", "pi", "--set", "training.unlabeled=0"]
    assert main(["train", "first", *words]) == 0
    assert main(["compare", *words[:-4], *words[-2:], "--methods", "pi", "--jobs", "1", "--out", "c"]) == 0
    assert "unlabeled examples" not in capsys.readouterr().out
    assert "which method has the lowest error?" in Path("c/report.html").read_text()


def test_a_second_run_that_is_asked_for_and_cannot_be_is_told(own, capsys):
    assert main(["train", "first", *own, "--method", "sadd", "--baseline"]) == 0
    said = "runs/first has no second run for --baseline: it used no unlabeled examples"
    assert said in capsys.readouterr().err


def test_more_classes_than_a_confusion_matrix_takes_have_an_answer(own, capsys, monkeypatch):
    monkeypatch.setattr("advdrop.lab.cli.answer.MOST_CLASSES", 1)
    assert main(["compare", *own, "--methods", "pi", "--jobs", "1", "--out", "c"]) == 0
    answer = read_answer(Path("c/answer.json"))
    assert (answer.classes, answer.confusion) == ((), ())
    assert capsys.readouterr().out.endswith(f"\n{answer.text}\n")
    page = Path("c/report.html").read_text()
    assert "40 unlabeled examples" in page
    assert not {"Confusion matrix", "The most frequent mistakes"} & set(page.replace("<", ">").split(">"))


def test_train_on_ones_own_data_answers_with_a_second_run(own, capsys):
    loud = [word for word in own if word != "--quiet"]
    assert main(["train", "first", *loud, "--method", "pi", "--seed", "3"]) == 0
    said = capsys.readouterr()
    assert "do the 40 unlabeled examples help? Training again with the labels alone, which takes less than" in said.err
    answer = read_answer(Path("runs/first/answer.json"))
    assert said.out.splitlines()[-1] == answer.text
    run, baseline = (RunDirectory.open(Path(f"runs/{name}")) for name in ("first", "first-baseline"))
    different = set(run.config.differences(baseline.config))
    assert {key.split(".")[0] for key in different} == {"method", "objective"}
    assert not uses_unlabeled(baseline.config)
    assert torch.equal(run.split.labeled, baseline.split.labeled)
    assert answer.error_percent == pytest.approx(run.result["test_error_percent"])
    assert answer.baseline_error_percent == pytest.approx(baseline.result["test_error_percent"])
    assert (
        main(["train", "first", *own, "--method", "vat", "--force"]) == 0
    )  # seed 0 now, so that baseline is another one
    assert read_answer(Path("runs/first/answer.json")).method == "vat"
    assert sorted(path.name for path in Path("runs").iterdir()) == ["first", "first-baseline", "first-baseline-2"]
    assert main(["report", "runs", "-o", "page.html"]) == 0
    assert "do the unlabeled examples help?" in Path("page.html").read_text()


def test_the_baseline_of_a_ladder_updates_its_batch_norm(own):
    words = [*own[: own.index("--set")], "--set", "network.hidden=[8]", "--quiet"]
    assert main(["train", "first", *words, "--method", "ladder", "--preset", "paper"]) == 0
    run, baseline = (RunDirectory.open(Path(f"runs/{name}")) for name in ("first", "first-baseline"))
    assert {key.split(".")[0] for key in run.config.differences(baseline.config)} == {"method", "objective"}
    for each in (run, baseline):
        counts = {int(count) for name, count in each.weights().items() if name.endswith("num_batches_tracked")}
        assert counts == {40}


def test_the_second_run_can_be_left_out_and_asked_for(own, capsys):
    assert main(["train", "first", *own, "--no-baseline"]) == 0
    assert main(["train", "known", "--dataset", "digits", "--labels", "20", "--updates", "4", *TINY]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["first", "known"]
    assert "unlabeled" not in capsys.readouterr().out
    assert main(["train", "asked", "--dataset", "digits", "--labels", "20", "--updates", "4", *TINY, "--baseline"]) == 0
    assert "unlabeled examples" in capsys.readouterr().out


def test_a_resumed_baseline_answers_for_its_run(own, capsys, monkeypatch):
    from advdrop.lab.cli import answer as module

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module.Cell, "run", stopped)
        assert main(["train", "first", *own, "--method", "pi"]) == 130
    run = RunDirectory.open(Path("runs/first"))
    assert run.finished  # nothing of it is lost
    alone = run.config.model_copy(
        update={
            "method": "dropout",
            "objective": run.config.objective.model_copy(update={"terms": type(run.config.objective.terms)()}),
        }
    )
    RunDirectory.create(Path("runs/first-baseline"), alone, run.split)  # as if it had been stopped at once
    capsys.readouterr()
    assert main(["train", "--resume", "runs/first-baseline", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == read_answer(Path("runs/first/answer.json")).text


def test_a_name_alone_makes_no_baseline(own, capsys):
    with np.load("own.npz") as arrays:
        np.savez("other.npz", **{**arrays, "x_test": arrays["x_test"][::-1]})
    assert main(["train", "cats", *own, "--method", "pi", "--no-baseline"]) == 0
    other = ["other.npz" if word == "own.npz" else word for word in own]
    assert main(["train", "cats-baseline", *other, "--method", "pi"]) == 0
    assert not Path("runs/cats/answer.json").exists()
    assert RunDirectory.open(Path("runs/cats-baseline-baseline")).config.dataset.endswith("other.npz")
    (Path("runs/cats-baseline") / "result.json").unlink()  # as if it had been stopped just before
    assert main(["train", "--resume", "runs/cats-baseline", "--quiet"]) == 0
    assert not Path("runs/cats/answer.json").exists()
    assert read_answer(Path("runs/cats-baseline/answer.json")).text in capsys.readouterr().out


def test_an_ordinary_folder_with_such_a_name_is_neither_run_nor_baseline(own):
    Path("runs/plain").mkdir(parents=True)
    assert main(["train", "plain-baseline", *own, "--method", "pi"]) == 0
    assert Path("runs/plain-baseline/answer.json").exists()
    Path("runs/mine-baseline").mkdir()
    assert main(["train", "mine", *own, "--method", "pi"]) == 0
    assert RunDirectory.open(Path("runs/mine-baseline-2")).finished
    assert [*Path("runs/mine-baseline").iterdir(), *Path("runs/plain").iterdir()] == []


def test_tables_have_an_answer_without_pictures(tmp_path):
    data, pairs = rings(test=30), []
    for name, method in (("a", "dropout"), ("b", "pi")):
        train(tiny(data=data, method=method), tmp_path / name, data=data, progress=False)
        pairs.append(RunDirectory.open(tmp_path / name))
    answer = answer_of([(pairs[0], pairs[1])], data, progress=False)
    assert answer.changed == ()
    assert (answer.labeled, answer.unlabeled, answer.test_images) == (12, 48, 30)
    assert answer_of([(pairs[1], pairs[0])], data, progress=False) is None  # a baseline with unlabeled images is none
    assert answer_of([], data) is None


@pytest.mark.parametrize("overlap", [True, False])
def test_labeled_images_in_the_unlabeled_stream_are_not_counted_as_unlabeled(overlap):
    assert unlabeled_images(split_labels(torch.arange(20) % 2, labels=4, seed=0, overlap=overlap)) == 16


@pytest.mark.parametrize(("shape", "size"), [((1, 8, 6), (6, 8)), ((3, 200, 100), (LARGEST // 2, LARGEST))])
def test_a_picture_is_small_and_looks_like_the_image(shape, size):
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = Image.open(io.BytesIO(base64.b64decode(thumbnail(x).removeprefix("data:image/png;base64,"))))
    assert picture.size == size
    if shape[1:] == (8, 6):
        assert np.array_equal(np.array(picture), x[0].numpy())


@pytest.mark.parametrize(
    "x", [torch.zeros(1, 8, 8), torch.zeros(2, 8, 8, dtype=torch.uint8), torch.zeros(9, dtype=torch.uint8)]
)
def test_what_is_no_image_has_no_picture(x):
    assert thumbnail(x) is None
