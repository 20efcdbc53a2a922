"""What each rank of the distributed tests runs, in a process of its own."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from advdrop.lab.engine import loop, train
from advdrop.lab.engine.training import PartialLoss
from runs import rings, tiny

STOP = "stop-at="
DIE = "die-at="
noise = []


def watch(stop: int, die: int) -> None:
    """Write down where the noise stands after each step; stop before one update, or let the second rank be killed."""
    forward = PartialLoss.forward

    def watched(self, update, turn):
        if update == stop:
            raise KeyboardInterrupt
        if update == die and os.environ["LOCAL_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        loss = forward(self, update, turn)
        noise.append(float(torch.rand(())))
        return loss

    PartialLoss.forward = watched


def rank(folder: str, method: str, *words: str) -> None:
    """Train, as one of as many processes as the environment says."""
    torch.set_num_threads(1)
    loop.AGREE_EVERY = 1
    watch(*(int(next((word.removeprefix(at) for word in words if word.startswith(at)), -1)) for at in (STOP, DIE)))
    settings = [word for word in words if "=" in word and not word.startswith((STOP, DIE))]
    try:
        train(tiny(*settings, method=method), Path(folder), data=rings(), progress=False, resume="resume" in words)
    except RuntimeError as error:
        Path(f"{folder}-rank{os.environ['LOCAL_RANK']}.txt").write_text(str(error))
        sys.exit(1)
    Path(f"{folder}-rank{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(noise))


def torchrun_rank(number: int, port: int, *words: str) -> None:
    """Be the rank of this number, of two, with the variables that torchrun sets."""
    ranks = {"RANK": number, "LOCAL_RANK": number, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none"}
    os.environ |= {name: str(value) for name, value in (ranks | meeting).items()}
    rank(*words)


if __name__ == "__main__":
    rank(*sys.argv[1:])
