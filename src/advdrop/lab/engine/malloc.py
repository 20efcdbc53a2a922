"""Keep freed memory for the next step."""

from __future__ import annotations

import ctypes

# From glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the tensors of its next step; return False without glibc.

    By default, glibc returns large blocks to the system as soon as they are freed. A training step frees all its
    activations and needs the same blocks again in the next step, and the system has to clear every page again.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none
        return False
    served = any(mallopt(_M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))  # glibc before 2.35 takes at most 32 MB
    return bool(served and mallopt(_M_TRIM_THRESHOLD, _LARGEST))
