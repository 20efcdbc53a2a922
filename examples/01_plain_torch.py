"""Scikit-learn's digits with 100 labels: first the labels only, then VAdD on the unlabeled digits, too."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from advdrop import AdversarialDropout, CrossEntropy, Ramp, Step, VAdD

digits = load_digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
labeled, unlabeled, test = order[:100], order[:1297], order[1297:]

for objective in (CrossEntropy(), CrossEntropy() + Ramp(1.0, over=0.3) * VAdD(delta=0.05)):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 256), nn.ReLU()]
    model = nn.Sequential(*hidden, AdversarialDropout(p=0.5), nn.Linear(256, 10))
    step = Step(model, objective)
    optimizer = torch.optim.Adam(model.parameters())
    for update in range(1000):
        u = x[unlabeled[torch.randint(len(unlabeled), (128,))]]
        out = step(x[labeled], y[labeled], unlabeled=u, progress=update / 1000)
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    error = (model.eval()(x[test]).argmax(1) != y[test]).float().mean()
    print(f"{100 * error:.1f} % test error: {' + '.join(objective.named_parts())}")
