"""The command line as a user meets it: in a folder of their own, with whatever they type."""

import functools
import io
import json
import re
import resource
import signal
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaml

import advdrop.__main__
from advdrop.lab.cli import train
from advdrop.lab.cli.main import main
from advdrop.lab.cli.runs import sparkline
from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.terms import METHODS
from advdrop.lab.data.sources import SOURCES, load
from advdrop.lab.engine import RunDirectory
from advdrop.lab.engine.signals import StoppedError
from commands import says

TINY = [
    "--dataset", "digits", "--labels", "20", "--updates", "4", "--set", "network.name=mlp", "--set",
    "network.hidden=[16,8]", "--set", "network.delta=0.3", "--set", "training.epoch_updates=2", "--set",
    "engine.accelerator=cpu",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_data(monkeypatch):
    monkeypatch.delenv("ADVDROP_DATA", raising=False)
    monkeypatch.setattr(train, "load", lambda name, *more, **options: read(name)(name, *more, **options))


def read(name):
    """What comes with the package is read once for all tests."""
    return once if name in SOURCES else load


once = functools.cache(load)


def test_an_encoding_without_a_letter_does_not_end_a_command(monkeypatch, capsys):
    assert main(["train", "first", *TINY, "--quiet"]) == 0
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["show", "runs/first"]) == 0
    sys.stdout.seek(0)
    assert "\\u2581" in sys.stdout.read()  # a curve
    assert capsys.readouterr().err == ""


def test_closed_streams_are_opened_again(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["show", "nothing"]) == 2
    assert main(["predict", "nothing", "-"]) == 2
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_the_command_is_there_and_knows_every_command():
    typed = [sys.executable, "-m", "advdrop", "--help"]
    said = subprocess.run(typed, capture_output=True, text=True, check=True, timeout=240).stdout
    assert all(command in said for command in ("train", "compare", "evaluate", "show", "data"))


COMMANDS = [
    "train",
    "compare",
    "predict",
    "serve",
    "export",
    "reproduce",
    "report",
    "evaluate",
    "audit",
    "explain",
    "show",
]


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), ["data"], *(["data", name] for name in ("list", "get", "check"))]
)
def test_every_command_explains_itself(command, capsys):
    code, out, err = says(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert "Usage: advdrop" in out
    assert not re.search(r"default: (None|False|\[\])", out)


def test_the_help_of_train_names_every_method(capsys):
    out = says(capsys, "train", "--help")[1]
    named = out.partition("Methods: ")[2].partition(" and sums")[0]
    assert {word.strip(", ") for word in named.split()} == {"dropout", *METHODS}


def test_version(capsys):
    assert says(capsys, "--version") == (0, f"advdrop {advdrop.__version__}\n", "")


def test_no_command_shows_the_help_and_fails(capsys):
    code, out, _ = says(capsys)
    assert code == 2
    assert "advdrop train" in out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tran", "No such command 'tran'. Did you mean 'train'?; see advdrop --help"),
        (
            "train --lables 3",
            "No such option: --lables (Possible options: --labels, --unlabeled); see advdrop train --help",
        ),
        ("train --labels many", "labels must be a number of examples or 'all', got 'many'"),
        ("train --labels 5", "labels=5 cannot be shared by 10 classes: each needs one at least"),
        ("train --labels 0 --method sadd", "labels must be a number of examples or 'all', got '0'"),
        ("train --labels 2000 --dataset digits", "which has 1"),
        ("train --method vadd-lk", "'vadd-lk', which is unknown (did you mean vadd-kl?)"),
        ("train --method dropout+pi", "dropout is the method without any term"),
        ("train --preset papers", "'papers' is not one of 'auto', 'paper', 'authors', 'robust' (did you mean paper?)"),
        ("train --seed -1", "seed should be greater than or equal to 0, got -1"),
        ("train --updates 0", "training.updates should be greater than or equal to 1, got 0"),
        ("train --set network.detla=0.1", "there is no option network.detla (did you mean delta?)"),
        ("train --set objectiv.ramp=0.1", "there is no option objectiv (did you mean objective?)"),
        ("train --set network.name=resnet", "network.name is 'resnet', which is unknown"),
        ("train --set labels=3", "labels=3 cannot be shared by 10 classes"),
        ("train --set dataset=[1]", "dataset must be a text, got [1]"),
        ("train --set method=1", "method must be a text, got 1"),
        ("train --set preset=x", "preset must be one of auto, paper, authors, robust, got 'x'"),
        ("train --set seed=x", "seed should be a valid integer"),
        ("train --set training.labeled=2000000", "training.labeled=2000000 is too large for 4,000 examples"),
        ("train --set training.updates=999999999999999999999999999999", "training.updates should be less than"),
        ("train --dataset digits --set network.hidden=[1000000000]", "the network needs 2,235 GB for its weights"),
        ("train --dataset digits --set network.hidden=[100000,100000]", " GB; make it smaller (--set network...)"),
        ("train --dataset digits --method gan-fm --set gan-fm.filters=1000000000", "not enough memory: 3200.0 GB were"),
        ("train --dataset digits --method catgan --set catgan.latent=1000000000", "make the network, the batches or"),
        ("train --dataset digits --set data.padding=zeros --set data.pad_crop=100000", "images of 8×8 out of sight"),
        ("train --seed 999999999999999999999999999999", "seed should be less than"),
        ("train --updates 1e3", "Invalid value for '--updates': Input should be a valid integer"),
        ("train --updates", "Option '--updates' requires an argument"),
        ("train one two", "Got unexpected extra argument(s) (two)"),
        ("train ../mine", "'../mine' is not a name for a run: begin with a letter, a digit or '_', and"),
        ("train .mine", "'.mine' is not a name for a run"),
        ("train +", "'+' is not a name for a run"),
        ("train =", "'=' is not a name for a run"),
        ("train -- -mine", "'-mine' is not a name for a run"),
        ("train a*b", "'a*b' is not a name for a run"),
        ("train \u202e", "'\\u202e' is not a name for a run"),
        ("train vadd-kl+vat", "did you mean --method vadd-kl+vat?"),
        ("train --config nowhere.yaml", "Invalid value for '--config': file 'nowhere.yaml' does not exist"),
        ("train --config broken.npz", "broken.npz is not YAML"),
        ("train --set delta", "--set takes KEY=VALUE"),
        ("train mnist", "mnist would be the name of the run; did you mean --dataset mnist?"),
        ("train vadd-kl", "did you mean --method vadd-kl?"),
        ("train --dataset digits --set data.pad_crop=9", "cannot reflect images of 8×8"),
        ("train --set vadd-kl.search=iterated --set vadd-kl.order=smallest", "are for the first-order search"),
        ("compare --methods vadd-kl,VADD-KL", "--methods has a method twice"),
        ("train --set network.kernel=2", "kernel must be odd, got 2"),
        ("train --set engine.accelerator=quantum", "invalid accelerator name"),
        ("train --set engine.accelerator=tpu", "engine: "),
        ("train --dataset digits --set network.name=conv-large", "conv-large"),
        ("train --dataset mnits", "did you mean mnist?"),
        ("train --dataset broken.npz", "broken.npz"),
        ("train --devices 3", "use a multiple of 3"),
        ("train --resume nowhere", "nowhere is not a run: it has no config.yaml"),
        ("train --resume nowhere --seed 4", "leave out --seed"),
        ("compare --methods dropout,nothing", "'nothing', which is unknown"),
        ("compare --devices 2", "No such option: --devices"),
        ("compare --seeds 0", "'--seeds': Input should be greater than or equal to 1, got '0'"),
        ("compare --seeds 1000000000", "Input should be less than or equal to 1000, got '1000000000'"),
        ("compare --set seed=1", "compare does not take --set seed; use --seeds"),
        ("compare --set vat.weight=2", "objective.terms has options of"),
        ("compare --set engine.devices=2", "each run of a comparison is one process"),
        ("compare --jobs 1 --set engine.accelerator=quantum", "invalid accelerator name"),
        ("compare --jobs 0", "'--jobs': Input should be greater than or equal to 1, got '0'"),
        ("compare --jobs 1001", "'--jobs': Input should be less than or equal to 1000, got '1001'"),
        ("compare --jobs x", "'--jobs': Input should be a valid integer"),
        ("evaluate nowhere", "nowhere is not a run"),
        ("evaluate", "Missing argument 'run'"),
        ("show", "Missing argument"),
        ("show nowhere", "nowhere is not a run"),
        ("data get nothing", "no data set 'nothing'"),
        ("data check broken.npz", "broken.npz"),
    ],
)
def test_a_mistake_is_one_line_exit_code_2_and_nothing_left_behind(typed, said, capsys, tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no longer a zip file")
    code, out, err = says(capsys, *typed.split())
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["broken.npz"]


FILE = """
dataset: digits
labels: 20
method: vat
network:
  name: mlp
  hidden: [16, 8]
  delta: 0.3
training: {updates: 4, epoch_updates: 2}
vat: {weight: 1e-1}  # short for objective.terms.vat
engine: {accelerator: cpu}
"""


def config_in(out):
    return RunConfig.of(yaml.safe_load(out))


def test_a_file_wins_over_the_recipe_options_over_the_file_and_set_over_all(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(FILE)
    code, out, _ = says(capsys, "train", "--config", "mine.yaml", "--dry-run")
    assert code == 0
    config = config_in(out)
    assert (config.dataset, config.labels, config.method, config.seed) == ("digits", 20, "vat", 0)
    assert (config.network.hidden, config.objective.terms.vat.weight, config.training.updates) == ((16, 8), 0.1, 4)
    typed = ["--updates", "6", "--labels", "30", "--seed", "5", "--precision", "bf16"]
    over = config_in(says(capsys, "train", "--config", "mine.yaml", "--dry-run", *typed)[1])
    assert over.differences(config) == ["engine.precision", "labels", "seed", "training.updates"]
    assert (over.labels, over.seed, over.training.updates) == (30, 5, 6)
    sets = ["--set", "training.updates=7", "--set", "labels=all", "--set", "vat.weight=3"]
    last = config_in(says(capsys, "train", "--config", "mine.yaml", "--dry-run", *typed, *sets)[1])
    assert (last.labels, last.training.updates, last.objective.terms.vat.weight, last.seed) == ("all", 7, 3.0, 5)


def test_the_configuration_of_a_run_is_a_file_for_another(capsys, tmp_path):
    assert says(capsys, "train", "mine", *TINY, "--quiet", "--seed", "3")[0] == 0
    path = tmp_path / "runs" / "mine" / "config.yaml"
    assert says(capsys, "train", "again", "--config", str(path), "--quiet")[0] == 0
    first, again = (RunDirectory.open(tmp_path / "runs" / name) for name in ("mine", "again"))
    assert again.config == first.config
    assert again.model.read_bytes() == first.model.read_bytes()


def test_a_comparison_takes_a_file_and_gives_each_method_its_own_options(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(FILE + "seed: 9\nvadd-kl: {steps: 7}\n")
    typed = ["compare", "--config", "mine.yaml", "--methods", "dropout,vat,vadd-kl", "--out", "c", "--jobs", "1"]
    assert says(capsys, *typed, "--quiet")[0] == 0
    terms = {
        name: RunDirectory.open(tmp_path / "c" / f"{name}-0").config.objective.terms for name in typed[4].split(",")
    }
    assert (terms["vat"].vat.weight, terms["vadd-kl"].vadd_kl.steps) == (0.1, 7)
    assert terms["dropout"].chosen() == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("netwrok: {delta: 1}", "there is no option netwrok (did you mean network?)"),
        ("network: {detla: 1}", "there is no option network.detla (did you mean delta?)"),
        ("vatt: {weight: 1}", "there is no option vatt (did you mean vat?)"),
        ("network: mlp", "network should be a section of options, got 'mlp'"),
        ("- 1", "mine.yaml holds no configuration"),
        ("a: [", "mine.yaml is not YAML"),
        ("a: " + "[" * 5000, "mine.yaml is nested too deeply; a configuration has at most four levels"),
        ("network: " + "{a: " * 200 + "1" + "}" * 200, "there is no option network.a"),
        ("training: {updates: " + "9" * 30 + "}", "training.updates should be less than"),
        ("seed: " + "9" * 5000, "mine.yaml is not YAML: Exceeds the limit"),
        ("? [1]\n: 2", "mine.yaml is not YAML"),
        ("1: 2", "1 keys should be strings, got 1"),
        ("labels: -3", "labels must be a number of examples or 'all', got -3"),
        ("dataset:", "dataset must be a text, got None"),
    ],
)
def test_a_file_that_is_wrong_is_told_in_one_line(content, said, capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(content)
    for command in ("train", "compare"):
        code, out, err = says(capsys, command, "--config", "mine.yaml")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
        assert len(err) < 300


@pytest.mark.parametrize(
    "name", ["../mine", "a/b", "/a", "..", ".", ".mine", "a\\b", "~/a", "", " ", " a", "a ", "a\n", "a\0", "-a", "a:b"]
)
def test_a_name_is_no_path_and_no_hidden_folder(name):
    with pytest.raises(ValueError, match=r"is not a name for a run: .*use --out for a path"):
        train.check_name(name)


@pytest.mark.parametrize("name", ["a", "_1", "7", "été", "вчера", "two words", "v1.0-b_2", "pi+vat-2", "試し"])
def test_a_name_has_letters_of_any_language(name):
    train.check_name(name)


@pytest.mark.parametrize("stream", ["labeled", "unlabeled"])
def test_a_batch_that_would_take_forever_is_refused(stream):
    data = SOURCES["digits"].read(Path())
    values = {**train.DEFAULTS, "dataset": "digits", "labels": 20, "training": {stream: 2_000_000}}
    with pytest.raises(
        ValueError, match=rf"training\.{stream}=2000000 is too large for 1,442 examples; use up to 10000"
    ):
        train.config_of(values, data)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_ctrl_c_while_options_are_parsed_is_said(capsys, monkeypatch):
    monkeypatch.setattr(Path, "expanduser", interrupt)
    assert says(capsys, "train", "--out", "x") == (130, "", "advdrop: stopped\n")


def test_ctrl_c_while_the_command_line_is_imported_is_said(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "advdrop.lab.cli.main")
    monkeypatch.setattr(sys, "meta_path", [types.SimpleNamespace(find_spec=interrupt)])
    assert advdrop.__main__.main() == 130
    assert capsys.readouterr().err == "advdrop: stopped\n"


def test_help_imports_nothing_heavy_and_takes_little_time():
    code = "import sys; from advdrop.lab.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = subprocess.run([sys.executable, "-c", code, "train", "--help"], capture_output=True, text=True, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 0.5
    assert not {"torch", "lightning", "numpy", "scipy"} & set(found.stderr.split())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("advdrop tr", "train"),
        ("advdrop train --lab", "--labels"),
        ("advdrop train --preset ro", "robust"),
        ("advdrop data ch", "check"),
        ("advdrop train --dataset fa", "fashion-mnist"),
        ("advdrop train --method vadd-kl+vadd-q", "vadd-kl+vadd-qe"),
        ("advdrop reproduce figure", "figure2"),
    ],
)
def test_words_are_completed(words, found, monkeypatch, capsys):
    monkeypatch.setenv("_ADVDROP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert found in capsys.readouterr().out.split()


def test_the_environment_is_no_option(capsys, monkeypatch):
    monkeypatch.setenv("VERSION", "1")
    monkeypatch.setenv("TRAIN", "1")
    code, out, _ = says(capsys, "data", "list", "--data-dir", "nowhere")
    assert code == 0
    assert "mnist5k" in out


def test_debug_shows_the_traceback(capsys):
    code, _, err = says(capsys, "train", "--labels", "5", "--debug")
    assert code == 2
    assert "Traceback" in err


def test_train_writes_a_run_and_refuses_to_touch_it_again(capsys, tmp_path):
    code, out, err = says(capsys, "train", *TINY)
    assert code == 0
    path = tmp_path / "runs" / "digits-20-vadd-qe-0"
    result = RunDirectory.open(path).result
    assert f"test error {result['test_error_percent']:.2f} %" in out
    assert "written to runs/digits-20-vadd-qe-0" in out
    assert re.search(r"update 2/4  loss .*test error .* left\n.*update 4/4", err)
    code, _, err = says(capsys, "train", *TINY)
    assert code == 2
    assert "runs/digits-20-vadd-qe-0 exists; resume it" in err
    code, _, err = says(capsys, "train", *TINY, "--force", "--quiet")
    assert (code, err) == (0, "")


def test_a_run_is_resumed_and_extended_from_inside(capsys, tmp_path, monkeypatch):
    run = tmp_path / "runs" / "mine"
    says(capsys, "train", "mine", *TINY, "--quiet")
    (run / "result.json").unlink()  # as if it had been stopped just before
    for longer in ([], ["--updates", "8"]):
        monkeypatch.chdir(run)
        code, out, err = says(capsys, "train", "--resume", ".", *longer, "--baseline")
        assert code == 0
        assert f"written to {run}\n" in out
        assert "unlabeled examples" in out  # the second run is beside it
    assert "\nmine  update 8/8" in err
    assert sorted(path.name for path in run.parent.iterdir()) == ["mine", "mine-baseline", "mine-baseline-2"]


def test_a_name_and_an_out_say_where(capsys, tmp_path):
    assert says(capsys, "train", "mine", *TINY, "--method", "dropout", "--quiet")[0] == 0
    assert says(capsys, "train", "--out", "there", *TINY, "--method", "dropout", "--quiet")[0] == 0
    assert RunDirectory.open(tmp_path / "runs" / "mine").finished
    assert RunDirectory.open(tmp_path / "there").finished


def test_dry_run_prints_a_configuration_that_can_be_read_and_writes_nothing(capsys, tmp_path):
    code, out, _ = says(capsys, "train", *TINY, "--dry-run", "--set", "vadd-qe.weight=1e-1")
    assert code == 0
    assert "delta: 0.3" in out
    assert "weight: 0.1" in out
    assert re.search(r"# 2,5\d\d parameters; 4 updates of \d+ ms: about 0:00:0\d", out)
    assert list(tmp_path.iterdir()) == []


def test_evaluate_and_show_read_a_run(capsys, tmp_path):
    main(["train", "mine", *TINY, "--quiet", "--preset", "paper"])
    capsys.readouterr()
    result = RunDirectory.open(tmp_path / "runs" / "mine").result
    code, out, _ = says(capsys, "evaluate", "runs/mine")
    assert code == 0
    error = f"{result['test_error_percent']:.2f} %"
    assert f"test error {error} of 355 test examples (recorded: {error})" in out
    assert len(re.findall(r"^  \d  +[\d.]+ %$", out, re.MULTILINE)) == 10
    code, out, _ = says(capsys, "show", "runs/mine")
    assert "vadd-qe on digits, 20 labels, seed 0, preset paper" in out
    assert "vadd_qe/flips" in out
    assert "companion/skill" not in out  # the preset has no companion
    code, out, _ = says(capsys, "show", "runs/mine", "runs/mine")
    assert out.count("finished") == 2
    main(["train", "--out", "runs/group/other one", *TINY, "--quiet", "--method", "dropout"])
    code, out, _ = says(capsys, "show", "runs/group/other one")
    row = RunDirectory.open(tmp_path / "runs" / "group" / "other one").metrics()[-1]
    for name in ("skill", "trust"):
        assert re.search(rf"  companion/{name} .* → {row[f'companion/{name}']:.4g}\n", out)
    code, out, _ = says(capsys, "show", "runs/mine", "runs/group")
    assert "other one" in out
    (tmp_path / "runs" / "mine" / "model.safetensors").write_bytes(b"cut off")
    code, out, err = says(capsys, "evaluate", "runs/mine")
    assert code == 2
    assert "runs/mine/model.safetensors is damaged or belongs to another run" in err
    (tmp_path / "runs" / "mine" / "split.npz").write_bytes(b"PK")
    code, out, err = says(capsys, "evaluate", "runs/mine")
    assert code == 2
    assert "runs/mine/split.npz: cannot be read" in err


def test_compare_uses_one_split_for_all_methods_and_keeps_what_is_done(capsys, tmp_path):
    typed = ["compare", *TINY, "--methods", "dropout,vadd-kl", "--seeds", "2", "--out", "c", "--jobs", "1"]
    code, out, err = says(capsys, *typed)
    assert code == 0
    assert re.search(r"\| dropout +\| [\d.]+ ± [\d.]+ +\| 2 ", out)
    assert re.search(r"\| vadd-kl +\| [\d.]+ ± [\d.]+ +\| 2 ", out)
    assert "[4/4] vadd-kl seed 1" in err
    runs = {name: RunDirectory.open(tmp_path / "c" / name) for name in ("dropout-0", "vadd-kl-0", "vadd-kl-1")}
    split = {name: run.split.labeled.tolist() for name, run in runs.items()}
    assert split["dropout-0"] == split["vadd-kl-0"] != split["vadd-kl-1"]
    written = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert [r["test_error_percent"] for r in written["vadd-kl"]] == [
        runs[f"vadd-kl-{seed}"].result["test_error_percent"] for seed in (0, 1)
    ]
    before = (runs["dropout-0"].path / "result.json").stat().st_mtime_ns
    code, again, err = says(capsys, *typed)
    assert (code, again, err) == (0, out, "")
    assert (runs["dropout-0"].path / "result.json").stat().st_mtime_ns == before
    code, _, err = says(capsys, *typed, "--set", "network.delta=0.1")
    assert code == 2
    assert "c/dropout-0 is a run with another network.delta; delete it or choose another --out" in err


def test_compare_dry_run_estimates(capsys, tmp_path):
    code, out, _ = says(capsys, "compare", *TINY, "--dry-run")
    assert code == 0
    assert re.search(r"about 0:00:\d\d in all", out)
    assert list(tmp_path.iterdir()) == []


def test_your_own_half_labeled_npz_trains(capsys, tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (np.eye(3)[y] * 3 + draw.normal(size=(120, 3))).astype(np.float32)
    half = np.where(np.arange(90) < 60, y[:90], -1)
    np.savez(tmp_path / "own.npz", x_train=x[:90], y_train=half, x_test=x[90:], y_test=y[90:])
    typed = ["train", "--dataset", "own.npz", "--labels", "all", "--updates", "5", "--quiet"]
    code, out, err = says(capsys, *typed)
    assert (code, err) == (0, "3 classes: 0, 1, 2\n")
    split = RunDirectory.open(tmp_path / "runs" / "own-all-vadd-qe-0").split
    assert (len(split.labeled), len(split.unlabeled)) == (60, 30)
    monkeypatch.chdir(tmp_path / "runs")  # a run knows where its data are
    code, out, err = says(capsys, "evaluate", "own-all-vadd-qe-0")
    assert (code, err) == (0, "")
    (tmp_path / "own.npz").rename(tmp_path / "moved.npz")
    for command in ("evaluate", "explain", "audit"):
        code, _, err = says(capsys, command, "own-all-vadd-qe-0")
        assert code == 2
        assert f"was trained on {tmp_path / 'own.npz'}, which is not there anymore; put it back, or give its new" in err
        assert says(capsys, command, "own-all-vadd-qe-0", "--dataset", "../moved.npz")[0] == 0
    assert "put it back" in says(capsys, "train", "--resume", "own-all-vadd-qe-0", "--updates", "9")[2]
    code, out, _ = says(capsys, "data", "check", "../moved.npz")
    assert "90 training examples of (3,), 60 of them labeled" in out


def test_data_list_and_check(capsys):
    code, out, _ = says(capsys, "data", "list", "--data-dir", "nowhere")
    assert code == 0
    assert re.search(r"\| mnist5k +\| 1x28x28 \| 4,000 +\| 1,000 ", out)
    assert "advdrop data get cifar10" in out
    assert "The folder is nowhere" in out
    code, out, _ = says(capsys, "data", "check", "digits")
    assert code == 0
    assert "10 classes" in out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoppedError("stopped after update 3"), 130),
        (RuntimeError("broke"), 1),
        (OSError("full"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_goes_wrong_on_the_way_has_its_own_code(error, code, capsys, monkeypatch):
    def fail(_):
        raise error

    monkeypatch.setattr("advdrop.lab.cli.runs.run_show", fail)
    found, out, err = says(capsys, "show", "x")
    assert (found, out) == (code, "")
    assert err.startswith(f"advdrop: {error}" if str(error) else "advdrop: stopped")
    assert err.count("\n") == 1


def test_a_method_that_diverges_does_not_stop_the_comparison(capsys):
    wild = ["--set", "optimizer.learning_rate=1e30", "--set", "optimizer.ramp_down=0", "--updates", "12", "--jobs", "1"]
    typed = [part for part in TINY if part not in ("--updates", "4")]
    code, out, err = says(capsys, "compare", *typed, *wild, "--methods", "dropout,vadd-kl", "--quiet")
    assert code == 1
    assert re.search(r"\| dropout +\| failed", out)
    assert re.search(r"\| vadd-kl +\| failed", out)
    assert "[2/2] vadd-kl seed 0: update" in err


def test_a_comparison_leaves_a_page_of_somebody_else_as_it_is(capsys, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "report.html").write_text("mine")
    code, _, err = says(capsys, "compare", *TINY, "--methods", "dropout", "--out", "c", "--jobs", "1")
    assert (code, sorted(path.name for path in (tmp_path / "c").iterdir())) == (2, ["report.html"])
    assert "c/report.html was not written by advdrop and is left as it is; choose another --out" in err


def test_a_curve_with_values_that_are_not_finite_is_drawn_without_them():
    assert sparkline([0.0, float("nan"), 1.0, float("inf"), 7.0]) == "▁▂█"
    assert sparkline([float("nan")]) == "▁"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_a_signal_before_the_training_stops_the_command_and_leaves_nothing(name, capsys, tmp_path, monkeypatch):
    number = getattr(signal, name)
    monkeypatch.setattr(train, "dataset_of", lambda *_: signal.raise_signal(number))
    before = signal.getsignal(number)
    assert says(capsys, "train", *TINY) == (130, "", "advdrop: stopped\n")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before
