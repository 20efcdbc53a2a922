"""Memory that is freed and asked for again at every step."""

from __future__ import annotations

import ctypes

# From glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the tensors of its next step.

    By default glibc gives large blocks back to the system as soon as they are freed. A training step frees all its
    activations and asks for the same blocks again a moment later, and the system has to find and clear every page
    anew. The process will not become smaller again until it ends. Nothing else changes, least of all a number.

    Returns:
        Whether it could be arranged; elsewhere than under glibc there is nothing to arrange.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none to be found
        return False
    # glibc before 2.35 takes no more than 32 MB.
    served = any(mallopt(_M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))
    return bool(served and mallopt(_M_TRIM_THRESHOLD, _LARGEST))
