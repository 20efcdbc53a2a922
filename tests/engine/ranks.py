"""What each rank of the distributed tests runs, started by Lightning or by torchrun as a process of its own."""

import json
import sys
from pathlib import Path

import torch

from advdrop.engine import callbacks, train
from advdrop.engine.module import Training
from advdrop.engine.run import process_rank
from runs import rings, tiny

STOP = "stop-at="
noise = []


def watch(stop: int) -> None:
    """Write down where the noise stands after each step, and stop before the update ``stop``."""
    step = Training.training_step

    def watched(self, batch, batch_idx):
        if batch == stop:
            raise KeyboardInterrupt
        loss = step(self, batch, batch_idx)
        noise.append(float(torch.rand(())))
        return loss

    Training.training_step = watched


if __name__ == "__main__":
    folder, method, *words = sys.argv[1:]
    torch.set_num_threads(1)
    callbacks.AGREE_EVERY = 1
    watch(int(next((word.removeprefix(STOP) for word in words if word.startswith(STOP)), -1)))
    settings = [word for word in words if "=" in word and not word.startswith(STOP)]
    train(tiny(*settings, method=method), Path(folder), data=rings(), progress=False, resume="resume" in words)
    Path(f"{folder}-rank{process_rank()}.json").write_text(json.dumps(noise))
