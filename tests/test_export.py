"""An exported network has nothing of the layers, and a compiled or quantized one gives the same numbers."""

import copy
import re

import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, CrossEntropy, Step, VAdD, insert
from small import gradients, seeded

X = torch.randn(4, 3, 8, generator=seeded())
Y = torch.tensor([0, 1, 1, 0])


class Network(nn.Module):
    """With a layer of its own, a layer behind a module, or none, and the same weights."""

    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv1d(3, 6, 3)
        self.own = layer if isinstance(layer, AdversarialDropout) else nn.Identity()
        self.last = nn.Linear(36, 2)

    def forward(self, x):
        return self.last(self.own(torch.relu(self.first(x))).flatten(1))


def trained(granularity="feature", own=True, inserted=True):
    """After a training step, in evaluation mode; and the same network without layers."""
    model = Network(AdversarialDropout(0.5, 0.2, granularity=granularity) if own else None)
    if inserted:
        insert(model, after="first", p=0.5, delta=0.2, granularity=granularity)
    step = Step(model, CrossEntropy() + VAdD())
    step(X, Y, generator=seeded()).loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    bare = Network(None)
    bare.load_state_dict(model.state_dict())
    return model.eval(), bare.eval()


EVERY = [(granularity, inserted) for granularity in ("unit", "channel", "feature") for inserted in (False, True)]
every = pytest.mark.parametrize(("granularity", "inserted"), EVERY)


def operations(text):
    return re.findall(r"(?:aten[.:]+|ops\.)(\w+)", text)


@every
def test_torch_export(granularity, inserted):
    model, bare = trained(granularity, not inserted, inserted)
    programs = [torch.export.export(network, (X,)) for network in (model, bare)]
    ours, plain = ([node.target for node in program.graph.nodes if node.op == "call_function"] for program in programs)
    assert ours == plain
    assert not [target for target in ours if re.search("dropout|bernoulli|mul|ones", str(target))]
    assert torch.equal(programs[0].module()(X), bare(X))


@every
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_by_tracing(granularity, inserted):
    model, bare = trained(granularity, not inserted, inserted)
    ours, plain = (torch.jit.trace(network, X) for network in (model, bare))
    assert operations(str(ours.inlined_graph)) == operations(str(plain.inlined_graph)) != []
    assert "dropout" not in " ".join(operations(str(ours.inlined_graph)))
    assert torch.equal(ours(X), bare(X))


@pytest.mark.filterwarnings("ignore")
def test_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model, bare = trained()
    torch.onnx.export(model, (X,), tmp_path / "model.onnx", dynamo=True, verbose=False)
    found = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert found <= {"Conv", "Relu", "Reshape", "Gemm", "MatMul", "Add", "Shape", "Concat", "Constant"}
    (output,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": X.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), bare(X))


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning")
@every
def test_dynamic_quantization_after_training(granularity, inserted):
    model, bare = trained(granularity, not inserted, inserted)
    ours, plain = (torch.ao.quantization.quantize_dynamic(network, {nn.Linear}) for network in (model, bare))
    assert "Quantized" in type(ours.last).__name__ or "quantized" in type(ours.last).__module__
    assert torch.equal(ours(X), plain(X))
    torch.testing.assert_close(ours(X), bare(X), rtol=0.1, atol=0.05)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo looks at it
def test_a_compiled_network_gives_the_same_numbers():
    """In evaluation mode, and in a step. Other backends fuse what the eager one runs as it is."""
    results = []
    for compiled in (False, True):
        model, _ = trained()
        outputs = torch.compile(model, backend="eager")(X) if compiled else model(X)
        step = Step(copy.deepcopy(model).train(), CrossEntropy() + VAdD(noise="shared"))
        if compiled:
            step.model = torch.compile(step.model, backend="eager")
        torch.manual_seed(0)
        loss = step(X, Y, generator=seeded()).loss
        results.append([outputs, loss, *gradients(step, loss)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    torch.compiler.reset()
