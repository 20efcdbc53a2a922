"""Two processes: DistributedDataParallel around the whole step, because several passes share one backward."""

import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from advdrop import AdversarialDropout, Batch, CrossEntropy, TrainingStep, VAdD


def work(rank: int, processes: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    torch.manual_seed(0)  # one network; the masks of the processes differ all the same
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), AdversarialDropout(p=0.5, delta=0.05), nn.Linear(128, 10))
    step = DistributedDataParallel(TrainingStep(network, CrossEntropy() + VAdD()))
    optimiser = torch.optim.Adam(step.parameters(), lr=0.003)
    for update in range(200):
        rows = (torch.arange(64) * processes + rank + 128 * update) % 1500  # every process its own rows
        optimiser.zero_grad()
        step(Batch(x[rows], y[rows])).total.backward()
        optimiser.step()
    error = (network.eval()(x[1500:]).argmax(1) != y[1500:]).float().mean()
    print(f"process {rank}: {100 * error:.1f} % test error")
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(work, (2,), nprocs=2)
