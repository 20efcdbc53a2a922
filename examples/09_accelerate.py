"""Accelerate: prepare the whole step, and the same file runs on one device, on several, or in half precision.

python examples/09_accelerate.py, or accelerate launch examples/09_accelerate.py
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from advdrop import AdversarialDropout, CrossEntropy, Ramp, Step, VAdD

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
digits = load_digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), AdversarialDropout(p=0.5, delta=0.05), nn.Linear(128, 10))
# The step and not the network: several passes share one backward pass.
step, optimizer, rows = accelerator.prepare(
    Step(network, CrossEntropy() + Ramp(1.0, over=0.3) * VAdD()),
    torch.optim.Adam(network.parameters(), lr=0.003),
    DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=32, shuffle=True),
)
epochs = 10
for epoch in range(epochs):
    for batch in rows:
        with accelerator.accumulate(step):
            accelerator.backward(step(*batch, progress=epoch / epochs).loss)
            optimizer.step()
            optimizer.zero_grad()
error = (network.eval()(x[1400:]).argmax(1) != y[1400:]).float().mean()
accelerator.print(f"{100 * error:.1f} % test error")
