"""What makes the host wait for an accelerator: operations that hand values to Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim", "item"}


class Waits(TorchDispatchMode):
    """Counts all operations, and those that hand values, or shapes that depend on them, to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        self.seen[name] += 1
        if name in WAITS or any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))
