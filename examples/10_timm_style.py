"""A network in the style of timm: the layer after the pooled features takes the place of drop_rate."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from advdrop import CrossEntropy, Ramp, Step, VAdD, insert, remove


class TinyNet(nn.Module):
    def __init__(self, num_classes: int = 10, width: int = 48, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU())
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head_drop, self.classifier = nn.Dropout(drop_rate), nn.Linear(4 * width, num_classes)

    def forward_features(self, x: Tensor) -> Any:
        return self.blocks(self.stem(x))

    def forward(self, x: Tensor) -> Any:
        return self.classifier(self.head_drop(self.global_pool(self.forward_features(x))))


digits = load_digits()
x, y = torch.tensor(digits.images / 16).float()[:, None], torch.tensor(digits.target)
torch.manual_seed(0)
network = insert(TinyNet(), after="global_pool", p=0.5, delta=0.05)
step, order = Step(network, CrossEntropy() + Ramp(1.0, over=0.3) * VAdD()), torch.randperm(1400)
optimizer = torch.optim.Adam(network.parameters(), lr=0.002)
for update in range(200):
    few, others = order[:100], order[torch.randint(1400, (64,))]
    optimizer.zero_grad()
    step(x[few], y[few], unlabeled=x[others], progress=update / 200).loss.backward()
    optimizer.step()
error = (remove(network).eval()(x[1400:]).argmax(1) != y[1400:]).float().mean()
print(f"{100 * error:.1f} % test error, from 100 labels")
