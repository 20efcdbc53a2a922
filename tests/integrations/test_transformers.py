"""The Hugging Face trainer, on a tiny BERT with random weights."""

import json
import multiprocessing
import os
import socket

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from torch.utils.data import IterableDataset
from transformers import (
    AutoModelForSequenceClassification,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
)

from advdrop import (
    EMA,
    BinaryCrossEntropy,
    CatGAN,
    CrossEntropy,
    EntropyMinimization,
    Gamma,
    MeanTeacher,
    PiModel,
    Ramp,
    SAdD,
    Step,
    TemporalEnsembling,
    VAdD,
    insert,
)
from advdrop.insertion import adversarial_layers
from advdrop.integrations.transformers import (
    AdversarialDropoutMixin,
    AdversarialDropoutTrainer,
    place_before_output,
)
from advdrop.randomness import derived_seed

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
TOKENS = 9
BOTH = CrossEntropy() + Ramp(1.0, over=0.5) * VAdD()


def bert(dropout=0.0):
    torch.manual_seed(0)
    noise = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertForSequenceClassification(BertConfig(**SIZES, **noise))


def sentence(row, label=True, length=None):
    """Tokens up to a length that depends on the row, then padding. The first token tells the class."""
    generator = torch.Generator().manual_seed(row)
    length = length or 4 + row % 6
    tokens = torch.randint(3, 40, (TOKENS,), generator=generator)
    tokens[1], tokens[length:] = 1 + row % 2, 0
    found = {"input_ids": tokens, "attention_mask": (torch.arange(TOKENS) < length).long()}
    return found | ({"labels": row % 2} if label else {})


LABELED, UNLABELED = [sentence(row) for row in range(16)], [sentence(row, label=False) for row in range(100, 124)]


def arguments(folder, **options):
    usual = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "logging_steps": 1}
    fixed = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "seed": 3}
    return TrainingArguments(output_dir=str(folder), **{**usual, **fixed, **options})


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """Logs go to a list of their own and not to the terminal."""
    monkeypatch.setattr("builtins.print", lambda *words, **options: None)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def trained(folder, kind=AdversarialDropoutTrainer, model=None, data=None, options=None, **own):
    model = bert() if model is None else model
    trainer = kind(model, arguments(folder, **options or {}), train_dataset=data or LABELED, **own)
    trainer.train()
    return trainer


def weights(trainer):
    return torch.cat([value.flatten() for value in trainer.model.state_dict().values()])


# --------------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("accumulated", [1, 4])
def test_cross_entropy_alone_trains_as_the_plain_trainer(tmp_path, accumulated):
    """BERT takes the number of items and ignores it, so the plain Trainer has to be told to divide by the batches."""
    options = {"gradient_accumulation_steps": accumulated, "per_device_train_batch_size": 2, "max_steps": 5}
    model = bert(dropout=0.1)
    model.accepts_loss_kwargs = False
    plain = trained(tmp_path, Trainer, model, options=options)
    ours = trained(tmp_path, model=bert(dropout=0.1), options=options, objective=CrossEntropy())
    assert losses(ours) == pytest.approx(losses(plain), rel=1e-6)
    assert torch.allclose(weights(ours), weights(plain), atol=1e-6)


def test_accumulated_batches_have_the_loss_of_one_batch(tmp_path):
    """With labels here and there: each of them counts the same."""
    data = [sentence(row, label=row in (0, 1, 2, 5)) for row in range(8)]
    found = []
    for size, accumulated in ((8, 1), (2, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated, "max_steps": 1}
        objective = CrossEntropy() + SAdD(delta=0.2)
        trainer = trained(
            tmp_path, data=data, options={**options, "lr_scheduler_type": "constant"}, p=0.0, objective=objective
        )
        found.append((losses(trainer)[0], weights(trainer)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)


def tagger():
    torch.manual_seed(0)
    return BertForTokenClassification(BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def without_items():
    model = bert()
    model.accepts_loss_kwargs = False
    return model


@pytest.mark.parametrize(
    ("make", "label", "objective"),
    [
        (without_items, lambda row: row % 2, CrossEntropy()),
        (bert, lambda row: [float(row % 2), float(row > 3)], BinaryCrossEntropy()),
        (tagger, lambda row: [0, 1, 0, 1, *[1 if row > 3 else -100] * 5], CrossEntropy()),
        (bert, lambda row: -100, EntropyMinimization()),
        (bert, lambda row: row % 2 if row not in (4, 3) else -100, CrossEntropy() + EntropyMinimization()),
    ],
    ids=["no items", "many labels", "tokens", "no labels", "some labels"],
)
def test_each_row_counts_the_same_whatever_the_batches_are(tmp_path, make, label, objective):
    """Six rows in one batch, or in batches of four and two."""
    data = [sentence(row, label=False) | {"labels": label(row)} for row in (0, 4, 1, 5, 2, 3)]
    options, found = {"max_steps": 1, "train_sampling_strategy": "sequential", "optim": "sgd"}, []
    for size, accumulated in ((6, 1), (4, 2)):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        trainer = trained(tmp_path, model=make(), data=data, options={**options, **sizes}, objective=objective)
        found.append((losses(trainer)[0], weights(trainer)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-6)


def test_accumulated_batches_without_labels_count_the_same(tmp_path):
    data, found = [sentence(row, label=False) for row in range(8)], []
    for size, accumulated in ((8, 1), (2, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated, "max_steps": 1}
        found.append(losses(trained(tmp_path, data=data, options=options, objective=EntropyMinimization())))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_the_loss_is_that_of_a_step(tmp_path):
    trainer = AdversarialDropoutTrainer(bert(), arguments(tmp_path), train_dataset=LABELED, objective=BOTH, p=0.3)
    trainer.state.global_step, trainer.state.max_steps = 1, 4
    batch = trainer.data_collator(LABELED[:4])
    loss, out = trainer.compute_loss(trainer.model.train(), batch, return_outputs=True)
    step = Step(insert(bert(), after="dropout", p=0.3, granularity="feature").train(), BOTH)
    masks = torch.Generator().manual_seed(derived_seed(3, "masks", 1, 0, 0))
    y = batch.pop("labels")
    assert torch.equal(loss, step(batch, y, progress=0.25, generator=masks).loss)
    assert set(out.terms) == {"cross_entropy", "vadd_kl"}


@pytest.mark.parametrize("objective", [SAdD(delta=0.2), CrossEntropy() + VAdD(delta=0.2)], ids=["sadd", "vadd"])
@pytest.mark.parametrize("after", ["dropout", "bert.encoder.layer.0.output", "bert.embeddings"])
def test_padding_changes_nothing(tmp_path, objective, after):
    trainer = AdversarialDropoutTrainer(bert(), arguments(tmp_path), after=after, objective=objective, p=0.3)
    rows = [sentence(row, length=5) for row in range(4)]
    found = []
    for length in (TOKENS, 5):
        batch = {key: torch.stack([row[key][:length] for row in rows]) for key in ("input_ids", "attention_mask")}
        trainer._turn = (-1, 0)  # the same masks again
        loss = trainer.compute_loss(trainer.model.train(), {**batch, "labels": torch.tensor([0, 1, 0, 1])})
        found.append(loss.item())
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_a_padded_batch_has_the_loss_of_its_rows(tmp_path):
    trainer = AdversarialDropoutTrainer(bert(), arguments(tmp_path), after="bert.embeddings", objective=SAdD(), p=0.0)
    batch = trainer.data_collator([dict(row) for row in LABELED[:6]])
    alone = [row | {"labels": torch.tensor([row["labels"]])} for row in LABELED[:6]]
    for row in alone:
        length = int(row["attention_mask"].sum())
        row |= {key: row[key][None, :length] for key in ("input_ids", "attention_mask")}
    each = [trainer.compute_loss(trainer.model.train(), row).item() for row in alone]
    assert trainer.compute_loss(trainer.model.train(), batch).item() == pytest.approx(sum(each) / 6, abs=1e-5)


# -------------------------------------------------------------------------------------------------- rows without labels


@pytest.mark.parametrize("how", ["minus 100", "None", "no column"])
def test_rows_without_a_label_in_one_data_set(tmp_path, how, monkeypatch):
    seen = []
    forward = Step.forward
    monkeypatch.setattr(Step, "forward", lambda step, **given: seen.append(given) or forward(step, **given))
    none = {"minus 100": {"labels": -100}, "None": {"labels": None}, "no column": {}}[how]
    data = [sentence(row) if row < 6 else sentence(row, label=False) | none for row in range(16)]
    trained(tmp_path, data=data, options={"max_steps": 4}, objective=CrossEntropy() + VAdD())
    labels = [label for given in seen if given["y"] is not None for label in given["y"].tolist()]
    others = [tokens for given in seen if given["unlabeled"] for tokens in given["unlabeled"]["input_ids"].tolist()]
    assert sorted(labels) == [0, 0, 0, 1, 1, 1]
    assert sorted(others) == sorted(row["input_ids"].tolist() for row in data[6:])


def test_a_batch_without_labels_and_nothing_to_do(tmp_path):
    data = [sentence(row, label=False) for row in range(8)]
    trainer = trained(tmp_path, data=data, options={"max_steps": 2, "weight_decay": 0.0}, objective=CrossEntropy())
    assert losses(trainer) == [0.0, 0.0]
    assert torch.equal(weights(trainer), torch.cat([value.flatten() for value in bert().state_dict().values()]))


def test_an_unlabeled_data_set_is_gone_through_once_in_a_round(tmp_path, monkeypatch):
    seen = []
    forward = Step.forward
    monkeypatch.setattr(Step, "forward", lambda step, **given: seen.append(given) or forward(step, **given))
    trained(
        tmp_path,
        unlabeled_dataset=[row | {"labels": 1} for row in UNLABELED],
        unlabeled_batch_size=8,
        options={"max_steps": 3},
        objective=CrossEntropy() + VAdD(),
    )
    rows = [tokens for given in seen for tokens in given["unlabeled"]["input_ids"].tolist()]
    assert sorted(rows) == sorted(row["input_ids"].tolist() for row in UNLABELED)
    assert all(set(given["unlabeled"]) == {"input_ids", "attention_mask"} for given in seen)


def test_it_learns(tmp_path):
    model = bert(dropout=0.1)
    options = {"max_steps": 60, "learning_rate": 5e-3, "logging_steps": 60}
    trainer = trained(tmp_path, model=model, options=options, unlabeled_dataset=UNLABELED, p=0.3)
    trainer.eval_dataset = [sentence(row) for row in range(200, 240)]
    assert trainer.evaluate()["eval_loss"] < 0.2
    assert {"cross_entropy", "vadd_kl"} <= set(trainer.state.log_history[0])


def test_token_classification(tmp_path):
    """Padded tokens and rows without labels; the tokens 1 and 2 are the two classes, and 0 is padding."""
    torch.manual_seed(0)
    model = BertForTokenClassification(BertConfig(**SIZES))
    data = [sentence(row, label=False) for row in range(16)]
    data = [row | {"labels": torch.where(row["attention_mask"] > 0, row["input_ids"] % 2, -100)} for row in data]
    data = [row if number % 2 else row | {"labels": None} for number, row in enumerate(data)]
    trainer = trained(tmp_path, model=model, data=data, options={"max_steps": 60, "learning_rate": 5e-3}, p=0.2)
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]


TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"[PAD]": 0, **{f"w{number}": number for number in range(1, 40)}})),
    pad_token="[PAD]",
)


def words(row):
    return {
        "input_ids": [1 + (row + place) % 39 for place in range(4 + row % 3)],
        "attention_mask": [1] * (4 + row % 3),
    }


def tags(row):
    return [place % 2 for place in range(4 + row % 3)]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("none", [{}, {"labels": None}])
def test_collators_that_pad_need_no_labels(tmp_path, tokens, none):
    """The first row, whole batches, and an unlabeled data set without labels."""
    kind, label = (BertForTokenClassification, tags) if tokens else (BertForSequenceClassification, lambda row: row % 2)
    collate = (DataCollatorForTokenClassification if tokens else DataCollatorWithPadding)(TOKENIZER)
    own = {"data_collator": collate, "objective": CrossEntropy() + VAdD(delta=0.2)}
    options = {"per_device_train_batch_size": 2, "max_steps": 2, "train_sampling_strategy": "sequential"}
    labeled = [words(row) | {"labels": label(row)} for row in range(4)]
    unlabeled = [words(row) | none for row in range(4, 8)]
    data = [*unlabeled[:3], *labeled]
    trainer = trained(tmp_path, model=kind(BertConfig(**SIZES)), data=data, options=options, **own)
    assert len(losses(trainer)) == 2
    mixed = [*unlabeled, labeled[0]]  # its labels are ignored
    trained(tmp_path, model=kind(BertConfig(**SIZES)), data=labeled, options=options, unlabeled_dataset=mixed, **own)


class OwnName(nn.Module):
    """Calls its labels ``answer``."""

    def __init__(self):
        super().__init__()
        self.bert = bert()

    def forward(self, input_ids, attention_mask=None, answer=None):
        del answer
        return self.bert(input_ids, attention_mask)


def test_a_column_of_labels_with_a_name_of_its_own(tmp_path):
    data = [sentence(row, label=False) | ({"answer": row % 2} if row > 3 else {}) for row in range(8)]
    options = {"label_names": ["answer"], "train_sampling_strategy": "sequential", "max_steps": 2}
    trainer = trained(tmp_path, model=OwnName(), data=data, options=options, objective=CrossEntropy() + VAdD())
    assert trainer.last_loss.terms.keys() == {"cross_entropy", "vadd_kl"}


def test_a_batch_that_cannot_be_divided_is_refused(tmp_path):
    trainer = AdversarialDropoutTrainer(bert(), arguments(tmp_path), train_dataset=LABELED, objective=CrossEntropy())
    batch = trainer.data_collator(LABELED[:4]) | {"labels": torch.tensor([0, -100, 1, -100])}
    shared = {"position_ids": torch.arange(TOKENS)[None], "names": ["a", "b", "c", "d"]}
    found = trainer._batch(batch | shared)
    assert found["x"]["names"] == ["a", "c"]
    assert found["unlabeled"]["names"] == ["b", "d"]
    assert found["x"]["position_ids"].shape == (1, TOKENS)
    with pytest.raises(ValueError, match=r"its input patches has shape \(7, 2\); put the rows without a label into"):
        trainer._batch(batch | {"patches": torch.zeros(7, 2)})


def test_a_model_that_returns_a_tuple(tmp_path):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SIZES, return_dict=False))
    assert losses(trained(tmp_path, model=model, options={"max_steps": 1}, logits=0)) == pytest.approx([0.7], abs=0.1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(LABELED)


def test_a_stream_of_rows(tmp_path):
    options = {"max_steps": 2, "train_sampling_strategy": "sequential"}
    given = {"options": options, "after": "dropout", "unlabeled_dataset": UNLABELED}
    assert losses(trained(tmp_path, data=Stream(), **given)) == losses(trained(tmp_path, **given))


# -------------------------------------------------------------------------------------- what the Trainer does by itself


def test_evaluation_and_saving_are_those_of_the_trainer(tmp_path):
    trainer = trained(tmp_path, unlabeled_dataset=UNLABELED, p=0.5)
    plain = Trainer(trainer.model, arguments(tmp_path))
    rows = [sentence(row) for row in range(200, 210)]
    names = ("eval_loss",)
    ours, theirs = trainer.evaluate(rows), plain.evaluate(rows)
    assert [ours[name] for name in names] == [theirs[name] for name in names]
    assert (trainer.predict(UNLABELED).predictions == plain.predict(UNLABELED).predictions).all()

    trainer.save_model(str(tmp_path / "saved"))
    assert load_file(tmp_path / "saved/model.safetensors").keys() == bert().state_dict().keys()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert not adversarial_layers(loaded)
    assert all(torch.equal(one, two) for one, two in zip(loaded.parameters(), trainer.model.parameters(), strict=True))


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "gradient_accumulation_steps": 2}
    own = {"unlabeled_dataset": UNLABELED, "unlabeled_batch_size": 5, "p": 0.3}
    whole = trained(tmp_path, model=bert(dropout=0.1), options=options, **own)
    other = AdversarialDropoutTrainer(bert(dropout=0.1), arguments(tmp_path, **options), train_dataset=LABELED, **own)
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert losses(other) == losses(whole)
    assert torch.equal(weights(other), weights(whole))


def test_a_teacher_resumes_from_its_own_weights(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}

    def own():
        return {"objective": CrossEntropy() + VAdD(target=EMA(0.9)), "p": 0.3}

    whole = trained(tmp_path, model=bert(dropout=0.1), options=options, **own())
    assert (tmp_path / "checkpoint-3/objective.pt").is_file()
    assert load_file(tmp_path / "checkpoint-3/model.safetensors").keys() == bert().state_dict().keys()
    other = AdversarialDropoutTrainer(bert(dropout=0.1), arguments(tmp_path, **options), train_dataset=LABELED, **own())
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(weights(other), weights(whole))


def test_one_trainer_can_be_resumed_twice(tmp_path):
    """The teacher is that of the checkpoint, and not what the last training made of it."""
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "learning_rate": 1e-2}
    trainer = trained(tmp_path, options=options, objective=CrossEntropy() + MeanTeacher(0.9))
    found = []
    for _ in range(2):
        trainer.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-1")
        found.append([*trainer._step.objective.state_dict()["mean_teacher"].values()])
    assert all(map(torch.equal, *found))
    (tmp_path / "checkpoint-1" / "objective.pt").unlink()
    with pytest.warns(UserWarning, match=r"checkpoint-1 has no objective\.pt: what the objective remembers"):
        trainer.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-1")


def test_bfloat16(tmp_path):
    options = {"bf16": True, "max_steps": 30, "learning_rate": 5e-3}
    trainer = trained(tmp_path, options=options, p=0.3, unlabeled_dataset=UNLABELED)
    assert trainer.model.classifier.weight.dtype == torch.float32
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]


@pytest.mark.filterwarnings("ignore:only .* torch calls below:UserWarning")
def test_gradient_checkpointing(tmp_path):
    found = [
        losses(trained(tmp_path, options={"gradient_checkpointing": on, "max_steps": 3}, p=0.3)) for on in (False, True)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_new_model_for_each_training(tmp_path):
    trainer = AdversarialDropoutTrainer(None, arguments(tmp_path), train_dataset=LABELED, model_init=lambda: bert())
    first = trainer.train().training_loss
    model = trainer.model
    assert trainer.train().training_loss == first
    assert trainer.model is not model
    assert len(adversarial_layers(trainer.model)) == 1


def test_the_objective_in_a_subclass_of_ones_own(tmp_path):
    class Mine(Trainer):
        def create_optimizer(self, *args):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            return self.optimizer

    class Both(AdversarialDropoutMixin, Mine):
        pass

    trainer = trained(tmp_path, Both, p=0.3)
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert {"cross_entropy", "vadd_kl"} <= set(trainer.state.log_history[0])


# ----------------------------------------------------------------------------------------------------- two processes


def worker(rank, port, folder):
    """One of two processes of a training, as `accelerate launch` would start it."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    torch.set_num_threads(1)
    found = [*trained_twice(folder, per_device_train_batch_size=2, ddp_backend="gloo")]
    wrapped = [type(trainer.model_wrapped).__name__ for trainer in found]
    changed = ["forward" in vars(trainer.model) for trainer in found]
    (folder / f"{rank}.json").write_text(json.dumps([[weights(t).tolist() for t in found], wrapped, changed]))


def trained_twice(folder, **options):
    """Once without randomness, once with it. Some batches of two rows have no label at all."""
    data = [sentence(row, label=row % 4 < 2) for row in range(16)]
    options |= {"gradient_accumulation_steps": 2, "max_steps": 3}
    fixed = CrossEntropy() + SAdD(delta=0.2)
    yield trained(folder, data=data, options=options, objective=fixed, p=0.0)
    yield trained(folder, model=bert(dropout=0.1), data=data, options=options, objective=BOTH, p=0.3)


def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=worker, args=(rank, port, tmp_path)) for rank in range(2)]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(240)  # the limit is for a test that will not end, not for a slow machine
    finally:
        for rank in ranks:
            rank.kill()
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == two
    trained, wrapped, changed = one
    assert set(wrapped) == {"DistributedDataParallel"}
    assert not any(changed)
    alone, random = (weights(trainer) for trainer in trained_twice(tmp_path, per_device_train_batch_size=4))
    assert torch.allclose(torch.tensor(trained[0]), alone, atol=1e-5)
    assert not torch.allclose(torch.tensor(trained[1]), random, atol=1e-5)


# ------------------------------------------------------------------------------------------------ where the layer goes


def deberta():
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    return DebertaV2ForSequenceClassification(DebertaV2Config(**SIZES))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_layer_goes_before_the_output_layer():
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 40}
    expected = {
        "dropout": [
            bert(),
            DistilBertForSequenceClassification(DistilBertConfig(**sizes)),
            deberta(),
        ],
        "classifier.dense": [RobertaForSequenceClassification(RobertaConfig(**SIZES))],
    }
    inputs = {key: value[None] for key, value in sentence(0, label=False).items()}
    for name, models in expected.items():
        assert [place_before_output(model, inputs) for model in models] == [name] * len(models)


def test_an_output_layer_that_is_a_convolution_is_not_taken_for_another():
    """As that of a segmentation with linear layers below."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Conv1d(4, 2, 1))
    with pytest.raises(ValueError, match=r"feeds the output layer of Sequential was found.*after=.*ran are 0, 1, 2, 3"):
        place_before_output(model, {"input": torch.zeros(1, 4, 8)})


def test_a_layer_only_where_one_is_needed(tmp_path):
    found = {}
    for name, objective in {"none": PiModel() + CrossEntropy(), "one": BOTH, "default": None}.items():
        trainer = AdversarialDropoutTrainer(
            bert(), arguments(tmp_path), train_dataset=LABELED, objective=objective, p=0.2, delta=0.3
        )
        found[name] = [(layer.p, layer.delta) for layer in adversarial_layers(trainer.model)]
    assert found == {"none": [], "one": [(0.2, 0.3)], "default": [(0.2, 0.3)]}
    own = insert(bert(), after="bert.pooler", p=0.4)
    trainer = AdversarialDropoutTrainer(own, arguments(tmp_path), train_dataset=LABELED)
    assert [layer.p for layer in adversarial_layers(trainer.model)] == [0.4]


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": "bert.poler"}, r"there is no module 'bert.poler' \(did you mean bert.pooler\?\)"),
        ({"unlabeled_dataset": []}, "unlabeled_dataset is empty"),
        ({"unlabeled_dataset": [{"text": "fine"}]}, "have no input_ids, attention_mask.*they have text"),
        ({"unlabeled_dataset": iter(UNLABELED)}, "must have a length and rows by their number, got list_iterator"),
        ({"objective": VAdD}, "objective must be an objective"),
        ({"objective": CrossEntropy() + Gamma(2)}, "gamma needs an optimizer for a module of its own.*use a Step"),
        ({"objective": CrossEntropy() + CatGAN(nn.Linear(9, 2))}, "catgan needs an optimizer for a module of its own"),
        ({"objective": TemporalEnsembling(16, 2)}, "temporal_ensembling needs the positions of the rows"),
        ({"compute_loss_func": print}, "compute_loss_func and an objective are two losses"),
        ({"unlabeled_batch_size": -1}, "unlabeled_batch_size must be at least 1, got -1"),
        ({"unlabeled_batch_size": 0}, "unlabeled_batch_size must be at least 1, got 0"),
        ({"train_dataset": Stream()}, r"say after which module the layer goes, after=\.\.\."),
        ({"unlabeled_dataset": Stream()}, "must have a length and rows by their number, got Stream"),
        ({"train_dataset": None}, r"say after which module the layer goes, after=\.\.\."),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        AdversarialDropoutTrainer(bert(), arguments(tmp_path), **{"train_dataset": LABELED, **options})


@pytest.mark.parametrize("seq2seq", [False, True])
def test_a_model_that_shifts_labels_is_refused(tmp_path, seq2seq):
    """Its loss is not that of its logits and labels: without a word, each token would be trained to predict itself."""
    sizes = {"d_model": 16, "decoder_layers": 1, "encoder_layers": 1, "vocab_size": 40}
    model = BartForConditionalGeneration(BartConfig(**sizes)) if seq2seq else BertLMHeadModel(BertConfig(**SIZES))
    with pytest.raises(ValueError, match=r"(Bart|Bert).* predicts the next token.*Use a model for classification"):
        AdversarialDropoutTrainer(model, arguments(tmp_path), train_dataset=LABELED, objective=CrossEntropy())


def test_a_second_loss_is_refused_in_any_place(tmp_path):
    with pytest.raises(ValueError, match="compute_loss_func and an objective are two losses"):
        AdversarialDropoutTrainer(bert(), arguments(tmp_path), None, LABELED, None, None, None, print)


def test_bad_training_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0.1 has no effect"):
        AdversarialDropoutTrainer(bert(), arguments(tmp_path, label_smoothing_factor=0.1), train_dataset=LABELED)
    with pytest.raises(ValueError, match="needs one column of labels, got start, end"):
        AdversarialDropoutTrainer(bert(), arguments(tmp_path, label_names=["start", "end"]), train_dataset=LABELED)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1]), "got 2 labels for 4 rows"),
        (torch.tensor([[0], [1], [0], [1]]), "labels"),
        (torch.tensor([0.0, 1.0, 0.0, 1.0]), "labels must be integers"),
        (torch.tensor([0, 1, 0, 7]), "7"),
        (torch.tensor([0.0, float("nan"), 0.0, 1.0]), "a label is NaN; a row without a label has None or -100"),
    ],
)
def test_bad_labels_are_refused(tmp_path, labels, message):
    trainer = AdversarialDropoutTrainer(bert(), arguments(tmp_path), train_dataset=LABELED, objective=CrossEntropy())
    batch = trainer.data_collator(LABELED[:4]) | {"labels": labels}
    with pytest.raises((TypeError, ValueError), match=message):
        trainer.compute_loss(trainer.model.train(), batch)


def test_unlabeled_rows_in_two_places_are_refused(tmp_path):
    data = [sentence(row, label=row % 2 == 0) for row in range(8)]
    with pytest.raises(ValueError, match="have no label, and there is an unlabeled_dataset, too"):
        trained(tmp_path, data=data, unlabeled_dataset=UNLABELED)
