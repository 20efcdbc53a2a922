"""Your own LightningModule and a callback: the layer is there while the model is trained, and gone afterwards."""

from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from advdrop import CrossEntropy, Ramp, Step, VAdD, insert, remove


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        self.step = Step(self.network, CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05))

    def training_step(self, batch: Any) -> Any:
        return self.step(*batch, progress=self.global_step / self.trainer.estimated_stepping_batches).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.network.parameters(), lr=0.003)


class WithLayer(lightning.Callback):
    def on_fit_start(self, trainer: Any, module: Any) -> None:
        insert(module.network, after="1", p=0.5)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        remove(module.network)


digits, module = load_digits(), Digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
rows = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=64, shuffle=True)
lightning.Trainer(max_epochs=10, callbacks=[WithLayer()], logger=False, enable_checkpointing=False).fit(module, rows)
error = (module.network.eval()(x[1400:]).argmax(1) != y[1400:]).float().mean()
print(f"{100 * error:.1f} % test error, {sum(len(part._forward_hooks) for part in module.modules())} layers left")
