"""A trained network with everything that is needed to use it, read from a finished run without its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.torch import load as parse
from safetensors.torch import save
from torch import Tensor, nn

from advdrop.lab.choices import Scaling
from advdrop.lab.config.config import RunConfig
from advdrop.lab.data.examples import DataSet, reading
from advdrop.lab.data.inputs import stored_batches
from advdrop.lab.data.preprocess import Preprocess
from advdrop.lab.engine.companion import blended
from advdrop.lab.engine.devices import set_memory_format
from advdrop.lab.engine.evaluate import BATCH, outputs
from advdrop.lab.engine.rundir import DAMAGED, RunDirectory, RunError
from advdrop.lab.environment import versions
from advdrop.lab.files import write_text, written


class Card(BaseModel):
    """What ``model.json`` says about a model. Its network is in ``config.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32"]
    scaling: Scaling
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class Model:
    """The model of a finished run.

    Args:
        classes: their names.
        shape: of one example, such as ``(3, 32, 32)``.
        dtype: ``torch.uint8`` if the examples are images, ``torch.float32`` if they are rows of a table.
        preprocess: maps stored examples ``(N, *shape)`` of that dtype to the input of the network.
        network: in evaluation mode. It maps preprocessed float32 ``(N, *shape)`` to logits ``(N, C)``, so
            ``network(preprocess(x)).softmax(1)`` are probabilities. If it is moved to a device, predictions run there.
        versions: of the packages that it was trained with.
    """

    classes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    preprocess: Preprocess = field(repr=False)
    network: nn.Module = field(repr=False)
    versions: dict[str, str] = field(repr=False)

    @property
    def takes_images(self) -> bool:
        """Whether the model classifies pictures; others classify rows of numbers."""
        return self.dtype == torch.uint8 and len(self.shape) == 3 and self.shape[0] in (1, 3)

    def predict(self, examples: Any) -> list[str]:
        """Return the name of the most probable class of each example; for the argument see ``predict_proba``."""
        return [self.classes[number] for number in self.predict_proba(examples).argmax(1)]

    def predict_proba(self, examples: Any) -> NDArray[np.float32]:
        """Return the probabilities of the classes, ``(N, C)``.

        Args:
            examples: one or several images: paths, Pillow images, or uint8 arrays or tensors ``(H, W)``, ``(H, W, C)``
                or ``(C, H, W)``, also of several images. They may have any size and any color mode. Files are read in
                batches. A model of a table takes numbers ``(N, *shape)`` instead.
        """
        found = [self.probabilities(part) for part in stored_batches(examples, self.shape, self.dtype, BATCH)]
        return np.concatenate(found) if found else np.zeros((0, len(self.classes)), np.float32)

    def probabilities(self, x: Tensor) -> NDArray[np.float32]:
        """Return the probabilities of stored examples ``(N, *shape)``, as evaluation computes them."""
        return outputs(self.network, x, self.preprocess).softmax(1).numpy()


def load(path: Path | str) -> Model:
    """Return the model of a finished run. The run may have been moved, and its data are not needed."""
    run = RunDirectory.open(Path(path))
    config, _ = run.config, run.result  # an error if it is not finished
    with reading(run.card, RunError, DAMAGED):
        card = Card.model_validate_json(run.read(run.card))
    with reading(run.preprocess, RunError, DAMAGED):
        preprocess = Preprocess(card.scaling, **_sound(parse(run.read(run.preprocess))))
        one = torch.empty(1, *card.shape, device="meta")
        if (found := preprocess.to(one.device)(one).shape) != one.shape:
            raise ValueError(f"it makes {tuple(found[1:])} of examples of shape {card.shape}")
    with reading(run.model, RunError, DAMAGED):
        with torch.device("meta"):  # takes no memory and no random numbers
            network = blended(config, card.shape, len(card.classes))
        network.load_state_dict(_sound(run.weights(), network.state_dict()), assign=True)
    network = set_memory_format(network, config.engine.memory_format).eval()
    return Model(card.classes, card.shape, getattr(torch, card.dtype), preprocess, network, card.versions)


def _sound(tensors: dict[str, Tensor], expected: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return tensors, or raise an error if one is of another type than expected, float32 by default, or not finite."""
    for name, tensor in tensors.items():
        dtype = expected[name].dtype if expected is not None and name in expected else torch.float32
        if tensor.dtype != dtype or not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has {tensor.dtype} and not {dtype}, or has a number that is not finite")
    return tensors


def write_model(
    run: RunDirectory, config: RunConfig, network: nn.Module, preprocess: Preprocess, data: DataSet
) -> None:
    """Write the files that ``load`` reads, each of them whole or not at all."""
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}
    with written(run.model) as file:
        file.write(save(weights, metadata={"config": config.model_copy(update={"data_dir": None}).dump()}))
    fitted = {name: t.cpu().contiguous() for name, t in vars(preprocess).items() if isinstance(t, Tensor)}
    with written(run.preprocess) as file:
        file.write(save(fitted))
    dtype: Any = str(data.train.x.dtype).removeprefix("torch.")
    scaling, classes = preprocess.scaling, data.classes
    card = Card(classes=classes, shape=data.shape, dtype=dtype, scaling=scaling, versions=versions())
    write_text(run.card, card.model_dump_json(indent=2) + "\n")
