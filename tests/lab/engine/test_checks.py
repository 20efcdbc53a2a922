import pytest

from advdrop.lab.config.values import ConfigError
from advdrop.lab.engine import train
from runs import rings, tiny

LADDER = "network={name: ladder, hidden: [8]}"


def run(path, *settings, method):
    train(tiny(*settings, method=method), path, data=rings(), progress=False)


@pytest.mark.parametrize("updating", ["", "clean, second"])
def test_batch_norm_that_nothing_updates_is_refused(updating, tmp_path):
    settings = ["network.name=ladder", "network.hidden=[8]", f"objective.updating=[{updating}]"]
    with pytest.raises(ConfigError, match=rf"^objective.updating=\[{updating}\] has no pass of the method dropout.*;"):
        run(tmp_path / "run", *settings, method="dropout")
    assert not (tmp_path / "run").exists()
    run(tmp_path / "ladder", *settings, method="ladder")  # its clean pass updates them
    run(tmp_path / "mlp", settings[-1], method="dropout")  # has none
    for rests in ("objective.terms.ladder.weight=0", "objective.blend=0.3"):
        with pytest.raises(ConfigError, match="running statistics of batch norm would stay as they are"):
            run(tmp_path / "resting", *settings[:-1], rests, method="ladder")


@pytest.mark.parametrize(
    ("method", "settings", "told"),
    [
        (
            "ladder",
            [LADDER, "training.unlabeled=1"],
            "unlabeled=1 leaves one row .* ladder .* training.unlabeled=2",
        ),
        ("gamma", ["training.unlabeled=1"], "the method gamma needs several"),
        ("catgan+vat", ["training.unlabeled=1"], "the method catgan needs several"),
        ("gan-fm", ["engine.accumulate=4", "training.unlabeled=4"], "=4 in 4 parts .* training.unlabeled=8"),
        ("pi", [LADDER, "training.labeled=1"], "training.labeled=1 .* batch norm of the network .* training.labeled=2"),
        ("gamma", ["training.unlabeled=0", "training.labeled=1"], "training.labeled=1 .* the method gamma"),
        ("pi", [LADDER, "training.unlabeled=1"], "batch norm of the network"),
    ],
)
def test_a_pass_of_one_row_is_refused_where_several_are_needed(method, settings, told, tmp_path):
    with pytest.raises(ConfigError, match=told):
        run(tmp_path / "run", *settings, method=method)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["pi", "temporal", "sajjadi", "dsn", "vadd-kl"])
def test_a_pass_of_one_row_is_enough_for_other_methods(method, tmp_path):
    run(tmp_path / "run", "training.unlabeled=1", "training.labeled=1", method=method)
