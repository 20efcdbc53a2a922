"""Two processes: DistributedDataParallel wraps the whole step, because several passes share one backward pass."""

from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from advdrop import AdversarialDropout, CrossEntropy, Step, VAdD


def work(rank: int, processes: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    torch.manual_seed(0)  # the same network in both processes; their masks still differ
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), AdversarialDropout(p=0.5, delta=0.05), nn.Linear(128, 10))
    step = DistributedDataParallel(Step(network, CrossEntropy() + VAdD()))
    optimizer = torch.optim.Adam(step.parameters(), lr=0.003)
    for update in range(200):
        rows = (torch.arange(64) * processes + rank + 128 * update) % 1500  # each process has its own rows
        optimizer.zero_grad()
        step(x[rows], y[rows]).loss.backward()
        optimizer.step()
    error = (network.eval()(x[1500:]).argmax(1) != y[1500:]).float().mean()
    print(f"process {rank}: {100 * error:.1f} % test error")
    dist.barrier()  # a process that leaves early would take the connection from the other one
    dist.destroy_process_group()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:  # a file to meet at: no port that another program may have
        spawn(work, (2, f"{folder}/meeting"), nprocs=2)
