"""Train a Hugging Face model with adversarial dropout: a ``transformers.Trainer`` with another loss.

    trainer = AdversarialDropoutTrainer(model, args, train_dataset=labeled, unlabeled_dataset=unlabeled)
    trainer.train()

It needs ``pip install 'advdrop[transformers]'``. Only the training loss differs from that of a ``Trainer``. Evaluation,
saving and prediction are those of the ``Trainer``, and a checkpoint has the keys of the plain model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from advdrop import checks
from advdrop.choices import Granularity
from advdrop.insertion import adversarial_layers, insert, places
from advdrop.integrations.rows import UNLABELED, LabelMissing, has_rows, shuffled, some_rows
from advdrop.objectives import AdD, Combination, CrossEntropy, Objective, TemporalEnsembling, VAdD
from advdrop.randomness import derived_seed
from advdrop.schedules import Factor, Ramp
from advdrop.step.batch import row_count
from advdrop.step.outputs import ATTENTION_MASK, Classes, Logits, Mask
from advdrop.step.step import Loss, Step, weight_at

STATE = "objective.pt"
"""The file of a checkpoint with the state of the objective, such as the weights of a teacher."""

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


class AdversarialDropoutMixin(_Base):
    """The training loss of :class:`AdversarialDropoutTrainer`, for your own subclass of ``Trainer``.

    ``class MyAdversarialTrainer(AdversarialDropoutMixin, MyTrainer)`` has the arguments of both. ``MyTrainer`` must not
    replace ``compute_loss`` for training: the objective takes its place.
    """

    model: Any
    train_dataset: Any
    loss_is_scaled_for_ga: bool | None = None  # compute_loss scales as the Trainer expects it by default

    def __init__(
        self,
        *args: Any,
        objective: Objective | None = None,
        after: str | Sequence[str] | None = None,
        unlabeled_dataset: Any = None,
        unlabeled_batch_size: int | None = None,
        p: float = 0.1,
        delta: float = 0.05,
        granularity: Granularity = "feature",
        classes: Classes = -1,
        logits: Logits = None,
        mask: Mask = ATTENTION_MASK,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.compute_loss_func is not None:
            raise ValueError(
                "compute_loss_func and an objective are two losses for one training; leave one of them out"
            )
        if self.args.label_smoothing_factor:
            factor = self.args.label_smoothing_factor
            raise ValueError(
                f"label_smoothing_factor={factor} has no effect on the objective; use "
                f"objective=CrossEntropy(label_smoothing={factor}) + ..."
            )
        if len(self.label_names) != 1:
            raise ValueError(
                f"the objective needs one column of labels, got {', '.join(self.label_names) or 'none'}; set "
                "TrainingArguments(label_names=['labels'])"
            )
        if getattr(self.model, "can_generate", bool)():
            raise ValueError(
                f"{type(self.model).__name__} predicts the next token: it shifts labels, or makes inputs of them, "
                "and a classifier does not. Use a model for classification, or a Step in a loop of your own, with "
                "Step(..., logits=lambda output: output.logits[:, :-1]) and the labels labels[:, 1:]"
            )
        self.training_objective = CrossEntropy() + Ramp(1.0, over=0.3) * VAdD() if objective is None else objective
        if not isinstance(self.training_objective, Objective):
            raise TypeError(f"objective must be an objective such as CrossEntropy() + VAdD(), got {objective!r}")
        for name, (_, term) in self.training_objective.named_parts().items():
            positions = isinstance(term, TemporalEnsembling)
            if positions or term.trained is not None or term.opponent is not None:
                needs = "the positions of the rows" if positions else "an optimizer for a module of its own"
                raise ValueError(f"{name} needs {needs}, which a Trainer does not give it; use a Step in your own loop")
        self.output_options = {"classes": classes, "logits": logits, "mask": mask}
        self.after, self.layer_options = after, {"p": p, "delta": delta, "granularity": granularity}
        self.unlabeled_dataset = unlabeled_dataset
        wanted = self.args.train_batch_size if unlabeled_batch_size is None else unlabeled_batch_size
        self.unlabeled_batch_size = checks.count("unlabeled_batch_size", wanted)
        self.last_loss: Loss | None = None
        self._step: Step | None = None
        self._labeled_share, self._other_share = Factor(), Factor()
        self._unlabeled_rows: tuple[Any, Callable[[Any], Any]] | None = None
        self._turn = (-1, 0)
        self._update_rows: tuple[int, list[int]] = (-1, [])
        self._resumed: Path | None = None
        self.add_callback(_SaveObjective(self))
        if unlabeled_dataset is not None:
            self._check_unlabeled()
        self._insert_layer()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the objective of a batch in training, and the loss of the ``Trainer`` in evaluation.

        With ``return_outputs``, the second result of a training step is an :class:`advdrop.Loss`.
        """
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        update = self.state.global_step
        self._turn = update, self._turn[1] + 1 if self._turn[0] == update else 0
        batch = self._batch(inputs)
        labeled = 0 if batch["y"] is None else len(batch["y"])
        other = labeled if batch["unlabeled"] is None else row_count(batch["unlabeled"])
        self._set_shares(labeled, other or 0, num_items_in_batch)
        # Masks have a generator of their own: a resumed run has the same, and dropout has the noise of a plain Trainer.
        seed = derived_seed(self.args.seed, "masks", *self._turn, self.args.process_index)
        batch["generator"] = torch.Generator(self.args.device).manual_seed(seed)
        batch["progress"] = min(1.0, update / max(1, self.state.max_steps))
        self.last_loss = _run(self._step_of(model), model, batch)
        return (self.last_loss.loss, self.last_loss) if return_outputs else self.last_loss.loss

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """Train as the ``Trainer`` does; a teacher resumes from its own weights."""
        last = resume_from_checkpoint
        if last is True:
            last = get_last_checkpoint(self.args.output_dir)
        self._resumed = Path(last) if last else None
        if last:
            self._step = None  # it loads the weights of the teacher when it is made
        return super().train(resume_from_checkpoint, *args, **options)

    def get_train_dataloader(self) -> Any:
        """Return the data loader of the ``Trainer``; a row without a label gets the label -100."""
        own: Any = self.data_collator
        self.data_collator = self._label_missing(own)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = own

    def _label_missing(self, collate: Any) -> LabelMissing:
        return LabelMissing(collate, (*self.label_names, "labels", "label", "label_ids"))

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log also the value of each term in the last step, such as ``vadd_kl``."""
        if self.last_loss is not None and "loss" in logs:
            logs |= {name: float(value) for name, value in self.last_loss.terms.items()}
        super().log(logs, *args, **options)

    def _step_of(self, model: nn.Module) -> Step:
        """Return the step of a network; a Trainer with ``model_init`` makes a new network for each training."""
        network = self.accelerator.unwrap_model(model)
        if isinstance(network, nn.DataParallel):
            raise RuntimeError(
                "nn.DataParallel copies the network for each pass, and a step has several; start one process for each "
                "device instead, with `accelerate launch` or torchrun"
            )
        if self._step is None or self._step.model is not network:
            self._insert_layer()
            shares = {"labeled": self._labeled_share, "unlabeled": self._other_share}
            parts = self.training_objective.parts
            scaled = Combination(tuple(((*factors, shares[term.rows]), term) for factors, term in parts))
            self._step = Step(network, scaled, ignore_index=UNLABELED, **self.output_options)  # type: ignore[arg-type]
            if self._resumed is not None and self._step.objective.state_dict():
                if (self._resumed / STATE).is_file():
                    self._step.objective.load_state_dict(torch.load(self._resumed / STATE, weights_only=True))
                else:
                    warnings.warn(
                        f"{self._resumed} has no {STATE}: what the objective remembers, such as the weights of a "
                        "teacher, starts again from the weights of the checkpoint",
                        stacklevel=2,
                    )
            self._resumed = None
        return self._step

    def get_batch_samples(self, *args: Any, **options: Any) -> Any:
        """Return the batches of the next update as the ``Trainer`` does, and count their rows."""
        samples, items = super().get_batch_samples(*args, **options)
        self._update_rows = self.state.global_step, []
        if len(samples) > 1 or self.args.world_size > 1:
            total = torch.tensor([self._row_counts(inputs) for inputs in samples] or [(0, 0)]).sum(0)
            if self._over_processes() > 1:
                total = self.accelerator.gather(total.to(self.args.device)[None]).sum(0)
            self._update_rows = self.state.global_step, total.tolist()
        return samples, items

    def _over_processes(self) -> int:
        """Return the number of processes whose rows are counted together."""
        return self.args.world_size if self.args.average_tokens_across_devices else 1

    def _set_shares(self, labeled: int, other: int, num_items: Tensor | int | None) -> None:
        """Weigh the terms, so that accumulated batches have the loss of one large batch: each row counts the same.

        Args:
            labeled: the number of labeled rows of this batch.
            other: the number of rows that terms without labels run on.
            num_items: what the Trainer counted. It divides the loss by the number of batches, unless the model takes
                this number.
        """
        update, total = self._update_rows
        shares = [1.0 if labeled else 0.0, 1.0]
        if total and update == self.state.global_step:
            divided = self.model_accepts_loss_kwargs and num_items is not None
            factor = self._over_processes() * (1 if divided else self.current_gradient_accumulation_steps)
            shares = [factor * rows / max(1, all_rows) for rows, all_rows in zip((labeled, other), total, strict=True)]
        self._labeled_share.value, self._other_share.value = shares

    def _row_counts(self, inputs: Mapping[str, Any]) -> tuple[int, int]:
        """Return the number of labeled rows of a batch, and of the rows that terms without labels run on."""
        known = self._known_rows(inputs)
        labeled = int(known.sum())
        if self.unlabeled_dataset is not None:
            return labeled, self.unlabeled_batch_size
        return labeled, len(known) - labeled or labeled

    def _known_rows(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return which rows of a batch have a label, ``(B,)``."""
        [name] = self.label_names
        y = inputs.get(name)
        tensors = (value for key, value in inputs.items() if key != name and isinstance(value, Tensor))
        rows = next((len(value) for value in tensors if value.dim() > 0), None)
        if rows is None:
            raise ValueError(f"there is no tensor with rows among the inputs {', '.join(inputs)}")
        if y is not None and len(y) != rows:
            raise ValueError(f"got {len(y)} labels for {rows} rows")
        if y is not None and y.isnan().any():
            raise ValueError(f"a label is NaN; a row without a label has None or {UNLABELED}, or no label")
        return torch.zeros(rows, dtype=torch.bool) if y is None else y.ne(UNLABELED).view(rows, -1).any(1)

    def _batch(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Divide a batch into labeled and unlabeled rows."""
        [name] = self.label_names
        x, y = {key: value for key, value in inputs.items() if key != name}, inputs.get(name)
        known = self._known_rows(inputs)
        rows, count = len(known), int(known.sum())
        batch: dict[str, Any] = {"x": x if count else None, "y": y if count else None, "unlabeled": None}
        if count < rows:
            if self.unlabeled_dataset is not None:
                raise ValueError(
                    f"{rows - count} of {rows} rows of train_dataset have no label, and there is an unlabeled_dataset, "
                    "too; put all rows without labels into one of them"
                )
            batch["unlabeled"] = some_rows(x, ~known)
            if count:
                batch |= {"x": some_rows(x, known), "y": y[known]}  # type: ignore[index]
        elif self.unlabeled_dataset is not None:
            batch["unlabeled"] = self._unlabeled()
        return batch

    def _unlabeled(self) -> dict[str, Any]:
        """Return the next unlabeled rows. They depend on the number of the step alone: a resumed run has the same."""
        if self._unlabeled_rows is None:  # the columns that the model does not take are left out, as the Trainer does
            loader: Any = self.get_test_dataloader(self.unlabeled_dataset)
            self._unlabeled_rows = loader.dataset, self._label_missing(loader.collate_fn)
        dataset, collate = self._unlabeled_rows
        update, turn = self._turn
        number = update * self.args.gradient_accumulation_steps + turn
        first = (number * self.args.world_size + self.args.process_index) * self.unlabeled_batch_size
        chosen = shuffled(len(dataset), first, self.unlabeled_batch_size, self.args.seed)
        batch = self._prepare_inputs(collate([dataset[row] for row in chosen]))
        return {key: value for key, value in batch.items() if key not in self.label_names}

    def _check_unlabeled(self) -> None:
        """Raise an error if the rows of the unlabeled data set cannot be inputs of the model."""
        data = self.unlabeled_dataset
        if not hasattr(data, "__len__") or not has_rows(data):
            raise TypeError(f"unlabeled_dataset must have a length and rows by their number, got {type(data).__name__}")
        if len(data) == 0:
            raise ValueError("unlabeled_dataset is empty; leave it out to run all terms on the rows of train_dataset")
        row, labeled = data[0], self.train_dataset[0] if has_rows(self.train_dataset) else {}
        if isinstance(row, Mapping) and isinstance(labeled, Mapping):
            taken = set(signature(self.model.forward).parameters) - set(self.label_names)
            missing = [key for key in labeled if key in taken and key not in row]
            if missing:
                raise ValueError(
                    f"the rows of unlabeled_dataset have no {', '.join(missing)}, which those of train_dataset have; "
                    f"they have {', '.join(row) or 'nothing'}. Prepare both data sets in the same way"
                )

    def _insert_layer(self) -> None:
        """Insert the layer where ``after`` says, unless the model has one or the objective needs none."""
        needed = any(isinstance(term, AdD) for _, term in self.training_objective.parts)
        if adversarial_layers(self.model) or (self.after is None and not needed):
            return
        after = self.after
        if after is None:
            if not has_rows(self.train_dataset):
                raise ValueError("say after which module the layer goes, after=...: train_dataset has no first row")
            collate = self._label_missing(self.get_test_dataloader(self.train_dataset).collate_fn)
            batch = collate([self.train_dataset[0]])
            after = place_before_output(self.model, self._prepare_inputs(dict(batch)), self.label_names)
        insert(self.model, after, **self.layer_options)  # type: ignore[arg-type]
        self.after = after


class AdversarialDropoutTrainer(AdversarialDropoutMixin, Trainer):
    """A ``transformers.Trainer`` that trains with an objective of advdrop.

    A row is unlabeled if its label is -100 or None, if it has no label, or if it is in ``unlabeled_dataset``. Terms
    such as VAdD run on the unlabeled rows of a batch, and on all of its rows if none is unlabeled.

    Args:
        args: what a ``Trainer`` takes, in its order, starting with the model and the ``TrainingArguments``.
        objective: a weighted sum of terms; by default ``CrossEntropy() + Ramp(1.0, over=0.3) * VAdD()``. Progress is
            the share of ``max_steps`` that is done.
        after: the name of the module after which the AdversarialDropout layer is inserted, or several names. By
            default the module that feeds the output layer. A model that has a layer, and an objective that needs none,
            get none.
        unlabeled_dataset: rows without labels, with the columns of ``train_dataset``. Each step takes the next ones, in
            an order that is shuffled again after each round.
        unlabeled_batch_size: how many of them a step takes on each device; the training batch size by default.
        p: DROP probability of the layer.
        delta: δ of the layer.
        granularity: of the masks, see :class:`advdrop.AdversarialDropout`. With ``"feature"``, the default, all tokens
            of a row share a mask, and padding changes nothing.
        classes: the dimension of the classes if the output has places: -1 for the logits ``(B, T, C)`` of token
            classification, 1 for the logits ``(B, C, *D)`` of segmentation.
        logits: how to get the logits from what the model returns, see :class:`advdrop.Step`; 0 for a tuple.
        mask: which places count, see :class:`advdrop.Step`; None for all.
        options: the keyword arguments of ``Trainer``.
    """


class _SaveObjective(TrainerCallback):
    """Puts the state of the objective into each checkpoint, if it has one."""

    def __init__(self, trainer: AdversarialDropoutMixin) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write the file, from the first process alone."""
        del control, others
        step, folder = self.trainer._step, Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if step is not None and args.should_save and folder.is_dir() and (own := step.objective.state_dict()):
            torch.save(own, folder / f".{STATE}")
            (folder / f".{STATE}").replace(folder / STATE)


def place_before_output(model: nn.Module, inputs: Mapping[str, Any], label_names: Sequence[str] = ()) -> str:
    """Return the name of the module that feeds the output layer, such as ``dropout`` in BERT.

    The output layer must be an ``nn.Linear``, the last one that runs. The module that feeds it is the last one before
    it that runs once and returns a tensor of as many features as the output layer takes.

    Args:
        model: a network with an output layer.
        inputs: a batch of at least one row.
        label_names: the inputs to leave out.
    """
    found = places(model, **{key: value for key, value in inputs.items() if key not in label_names})
    modules = dict(model.named_modules())
    output = next((at for at in reversed(range(len(found))) if isinstance(modules[found[at].name], nn.Linear)), 0)
    width = getattr(modules[found[output].name], "in_features", None) if found else None
    # A module with weights that runs later, such as the convolution of a segmentation, is the output layer.
    above = [weight for place in found[output + 1 :] for weight in modules[place.name].parameters(recurse=False)]
    linear = all(weight.dim() < 2 for weight in above)
    for place in reversed(found[:output]):
        if linear and place.part is None and place.calls == 1 and place.shape[-1] == width:
            return place.name
    last = ", ".join(place.name for place in found[-5:])
    raise ValueError(
        f"no module that feeds the output layer of {type(model).__name__} was found; say after which one the layer "
        f"goes, after=... The last that ran are {last}"
    )


def _run(step: Step, model: nn.Module, batch: dict[str, Any]) -> Loss:
    """Run a step. If the network is wrapped, as by DistributedDataParallel, the step is the forward of the wrapper."""

    def run(**given: Any) -> Loss:
        parts = step.objective.named_parts()
        if any(weight_at(name, factors, given["progress"]) for name, (factors, _) in parts.items()):
            return step(**given)  # type: ignore[no-any-return]
        # A batch without labels, and only terms that need them: a loss of zero, for the sake of the other processes.
        output = step.model(**(given["x"] or given["unlabeled"]))
        return Loss(0.0 * step.outputs.find(output).sum(), {}, {}, {})

    network = step.model
    if network is model:
        return run(**batch)
    before = vars(network).get("forward")

    def restore() -> None:
        vars(network).pop("forward", None)
        if before is not None:
            network.forward = before

    def forward(**given: Any) -> tuple[Tensor, Loss]:
        restore()
        result = run(**given)
        return result.loss, result

    network.forward = forward
    try:
        loss, result = model(**batch)
    finally:
        restore()
    return Loss(loss, result.terms, result.weights, result.measures)
