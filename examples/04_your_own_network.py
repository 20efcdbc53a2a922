"""A network whose code stays as it is: insert the layer, train, measure how fragile it is, remove the layer."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import advdrop
from advdrop import CrossEntropy, Step, VAdD

digits = load_digits()
x, y = torch.tensor(digits.images / 16).float()[:, None], torch.tensor(digits.target)


def network() -> nn.Module:
    """Stands for any network, from any library."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))


print("A layer can be inserted after:", *advdrop.places(network(), x[:1]), sep="\n  ")
for objective in (CrossEntropy(), CrossEntropy() + VAdD()):
    model = advdrop.insert(network(), after="5", p=0.5, delta=0.05)
    step = Step(model, objective)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(300):
        rows = torch.randint(1500, (64,))
        optimizer.zero_grad()
        step(x[rows], y[rows]).loss.backward()
        optimizer.step()
    found = advdrop.audit(model, [(x[1500:], y[1500:])], budgets=(0, 4, 16))
    print(f"{' + '.join(objective.named_parts())}: {found.worst[0]:.1f} % right,", end=" ")
    print(f"{found.worst[1]:.1f} % without the worst 4 of {found.units} units, {found.worst[2]:.1f} % without 16")
    advdrop.remove(model)  # the network as it was, with the weights it has learned
