"""A model as one file for other programs: raw images in, probabilities out, preprocessing inside."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from advdrop.lab.engine.model import Model

TOLERANCE = 1e-4
"""The largest difference of a probability between the file and the run."""
RANDOM = 32
"""How many random examples a file is checked on."""

Run = Callable[[Tensor], NDArray[np.float32]]
"""Runs an exported file on raw examples."""


class Format(NamedTuple):
    """How a file is made and run again."""

    ending: str
    packages: tuple[str, ...]
    write: Callable[[Model], bytes]
    read: Callable[[bytes], Run]


class Classifier(nn.Module):
    """Raw examples ``(N, *shape)`` to probabilities ``(N, C)``. It shares no tensor with the model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = deepcopy(model.network).cpu()
        # A file of its own for each tensor, in the usual order: exporters cannot store views.
        weights = {
            name: t.clone(memory_format=torch.contiguous_format) for name, t in self.network.state_dict().items()
        }
        self.network.load_state_dict(weights, assign=True)
        self.network.requires_grad_(False)
        self.preprocess = model.preprocess
        for name, tensor in vars(model.preprocess).items():
            if isinstance(tensor, Tensor):
                self.register_buffer(name, tensor.clone())

    def forward(self, images: Tensor) -> Tensor:
        """Return the probabilities."""
        fitted: dict[str, Any] = dict(self.named_buffers(recurse=False))
        return self.network(replace(self.preprocess, **fitted)(images)).softmax(1)  # type: ignore[no-any-return]


def random_examples(model: Model) -> Tensor:
    """Return the same random raw examples for each model of a shape: noise, and images of large patches."""
    draw = torch.Generator().manual_seed(0)
    if model.dtype == torch.float32:
        x = torch.randn(RANDOM, *model.shape, generator=draw)
        mean, std = model.preprocess.mean, model.preprocess.std
        return x if mean is None or std is None else mean + std * x
    x = torch.randint(0, 256, (RANDOM, *model.shape), generator=draw).float()
    if model.takes_images:
        x[::2] = nn.functional.interpolate(x[::2, :, ::4, ::4], model.shape[1:])
    return x.byte()


def describe(model: Model) -> dict[str, str]:
    """Return what the metadata of a file say: the classes as a JSON list, and what goes in and comes out."""
    kind = "uint8 from 0 to 255" if model.dtype == torch.uint8 else "float32"
    axes = "N x " + " x ".join(map(str, model.shape))
    order = {1: ", gray", 3: ", RGB"}.get(model.shape[0], "") if model.takes_images else ""
    return {
        "classes": json.dumps(model.classes, ensure_ascii=False),
        "input": f"images: {kind}, {axes}{order}",
        "output": f"probabilities: float32, N x {len(model.classes)}, in the order of the classes",
        "versions": json.dumps(model.versions),
    }


def _program(model: Model) -> torch.export.ExportedProgram:
    example = random_examples(model)[:2]
    shapes = {"images": {0: torch.export.Dim("N")}}
    return torch.export.export(Classifier(model).eval(), (example,), dynamic_shapes=shapes)


def _write_torch(model: Model) -> bytes:
    content = io.BytesIO()
    extra = {f"{name}.txt": text for name, text in describe(model).items()}
    torch.export.save(_program(model), content, extra_files=extra)
    return content.getvalue()


def _read_torch(content: bytes) -> Run:
    network = torch.export.load(io.BytesIO(content)).module()
    return lambda x: network(x).detach().numpy()


def _write_onnx(model: Model) -> bytes:
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["probabilities"]}
    program = torch.onnx.export(_program(model), dynamo=True, verbose=False, **names)
    assert program is not None
    proto = program.model_proto
    proto.producer_name = "advdrop"
    for name, text in describe(model).items():
        proto.metadata_props.add(key=name, value=text)
    content: bytes = proto.SerializeToString()
    return content


def _read_onnx(content: bytes) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"images": x.numpy()})[0]


FORMATS = {
    "onnx": Format(".onnx", ("onnx", "onnxscript", "onnxruntime"), _write_onnx, _read_onnx),
    "torch": Format(".pt2", (), _write_torch, _read_torch),
}


def refuse_missing(name: str) -> None:
    """Raise an error if a package for this format is not installed."""
    for package in FORMATS[name].packages:
        if find_spec(package) is None:
            raise ValueError(f"--format {name} needs {package}, which is not installed; pip install 'advdrop[export]'")


def exported(model: Model, name: str) -> tuple[bytes, Run]:
    """Return the content of a file in this format, and a function that runs it."""
    chosen, log = FORMATS[name], logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporters of torch warn about their own insides
            content = chosen.write(model)
            return content, chosen.read(content)
    finally:
        log.setLevel(level)


def largest_difference(run: Run, model: Model, x: Tensor) -> float:
    """Return the largest difference of a probability, over the examples one at a time and all at once."""
    expected = model.probabilities(x)
    together, alone = run(x), np.concatenate([run(one) for one in x[:3].split(1)])
    differences = [np.abs(together - expected).max(), np.abs(alone - expected[:3]).max()]
    return float(np.max(differences))  # NaN if there is one
