"""Whether an object is the one that was there before, without keeping it alive."""

from __future__ import annotations

import weakref
from typing import Any


class Same:
    """Remembers one object. A copy, also one that was pickled, remembers nothing.

    >>> same, first, second = Same(), Same(), Same()
    >>> same.differs(first), same.differs(first), same.differs(second)
    (False, False, True)
    """

    def __init__(self) -> None:
        self._before: weakref.ref[Any] | None = None

    def differs(self, now: Any) -> bool:
        """Remember an object; return True if another one was remembered before."""
        known = self._before is not None
        return self.changes(now) and known

    def changes(self, now: Any) -> bool:
        """Remember an object; return True if it was not remembered before."""
        before, self._before = self._before, weakref.ref(now)
        return before is None or before() is not now

    def __reduce__(self) -> tuple[type[Same], tuple[()]]:
        """Return how to make the copy."""
        return Same, ()
