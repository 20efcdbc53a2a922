"""An average of the weights and of the batch-norm statistics, in plain torch: often better than the last weights."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from advdrop import AdversarialDropout, CrossEntropy, Ramp, Step, VAdD

digits = load_digits()
x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
labeled, unlabeled, test = order[:100], order[:1297], order[1297:]

torch.manual_seed(0)
hidden = [nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU()]
model = nn.Sequential(*hidden, AdversarialDropout(p=0.5, delta=0.05), nn.Linear(256, 10))
# use_buffers: the running statistics of batch norm are averaged, too. The average is no part of the step.
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
step = Step(model, CrossEntropy() + Ramp(1.0, over=0.3) * VAdD())
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for update in range(500):
    u = x[unlabeled[torch.randint(len(unlabeled), (128,))]]
    optimizer.zero_grad()
    step(x[labeled], y[labeled], unlabeled=u, progress=update / 500).loss.backward()
    optimizer.step()
    average.update_parameters(model)  # after each update of the optimizer
for name, network in {"the last weights": model, "their average": average}.items():
    error = (network.eval()(x[test]).argmax(1) != y[test]).float().mean()
    print(f"{100 * error:.1f} % test error with {name}")
