"""A network whose code you do not touch: put the layer in, train, look how fragile it is, take the layer out."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import advdrop
from advdrop import Batch, CrossEntropy, VAdD

digits = load_digits()
x, y = torch.tensor(digits.images / 16).float()[:, None], torch.tensor(digits.target)


def network() -> nn.Module:
    """Stands for any network, from any library."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))


print("A layer could be put behind:", *advdrop.places(network(), x[:1]), sep="\n  ")
for objective in (CrossEntropy(), CrossEntropy() + VAdD()):
    model = advdrop.wrap(network(), after="5", p=0.5, delta=0.05)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(300):
        rows = torch.randint(1500, (64,))
        optimiser.zero_grad()
        objective(model, Batch(x[rows], y[rows])).total.backward()
        optimiser.step()
    found = advdrop.audit(model, [(x[1500:], y[1500:])], budgets=(0, 4, 16))
    print(f"{' + '.join(objective.named_parts())}: {found.worst[0]:.1f} % right,", end=" ")
    print(f"{found.worst[1]:.1f} % without the worst 4 of {found.units} units, {found.worst[2]:.1f} % without 16")
    plain = model.unwrap()  # the network as it was, with what it has learnt
