"""Scikit-learn's digits with 100 labels: the labels alone, then VAdD on the unlabelled digits as well."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from advdrop import AdversarialDropout, Batch, CrossEntropy, Ramp, VAdD

digits = load_digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
labelled, unlabelled, test = order[:100], order[:1297], order[1297:]

for objective in (CrossEntropy(), CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05)):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.ReLU()]
    model = nn.Sequential(*hidden, AdversarialDropout(p=0.5), nn.Linear(256, 10))
    optimiser = torch.optim.Adam(model.parameters())
    for step in range(1000):
        u = x[unlabelled[torch.randint(len(unlabelled), (128,))]]
        loss = objective(model, Batch(x[labelled], y[labelled], u), progress=step / 1000).total
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    error = (model.eval()(x[test]).argmax(1) != y[test]).float().mean()
    print(f"{100 * error:.1f} % test error: {' + '.join(objective.named_parts())}")
