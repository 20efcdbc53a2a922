"""A Hugging Face classifier with new weights, on sentences that are made here; most of them have no label."""

import itertools

import torch
from transformers import BertConfig, BertForSequenceClassification

import advdrop
from advdrop import CrossEntropy, Ramp, Step, VAdD

things, verbs = ["film", "story", "actor", "song"], ["was", "seemed", "felt", "sounded"]
moods = {"good": 1, "fine": 1, "great": 1, "bad": 0, "dull": 0, "awful": 0}
words = {word: number for number, word in enumerate([*things, *verbs, *moods, "the", "very", "quite"])}
sentences = [["the", t, v, much, m] for t, v, much, m in itertools.product(things, verbs, ["very", "quite"], moods)]
x = torch.tensor([[words[word] for word in sentence] for sentence in sentences])
y = torch.tensor([moods[sentence[-1]] for sentence in sentences])
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
few, others, test = order[:12], order[:150], order[150:]

torch.manual_seed(0)
config = BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
model = BertForSequenceClassification(config).train()
advdrop.insert(model, after="bert.embeddings", p=0.1, delta=0.1, granularity="feature")
step = Step(model, CrossEntropy() + Ramp(1.0, over=0.3) * VAdD())
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
for update in range(120):
    u = x[others[torch.randint(len(others), (32,))]]
    out = step(x[few], y[few], unlabeled=u, progress=update / 120)
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
right = (advdrop.remove(model).eval()(x[test]).logits.argmax(1) == y[test]).float().mean()
print(f"{100 * right:.0f} % of {len(test)} sentences right, from {len(few)} labels")
