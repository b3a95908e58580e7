"""A bounded memory of keys, for what must be recognised when it comes again.

A few sets that take turns, because forgetting one by one what came first is not cheap in a dictionary: its beginning
has to be looked for behind all that was deleted there, which costs up to half a millisecond at 200,000 keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Sets before the present one that are kept whole.
_BEFORE: Final = 4


class Recent:
    """Knows the last `least` keys that were added at any rate, never more than a quarter more."""

    __slots__ = ("_each", "_old", "_young")

    def __init__(self, least: int) -> None:
        self._young: set[str] = set()
        #: The newest first.
        self._old: tuple[set[str], ...] = ()
        self._each = -(-least // _BEFORE)

    def __len__(self) -> int:
        return len(self._young.union(*self._old))

    def __contains__(self, key: str) -> bool:
        if key in self._young:
            return True
        for old in self._old:  # noqa: SIM110 - every job is asked for, and a generator costs several times more
            if key in old:
                return True
        return False

    def add(self, keys: Iterable[str]) -> None:
        """Each counts as the newest again if it was known."""
        self._young.update(keys)
        if len(self._young) >= self._each:
            self._old = (self._young, *self._old[: _BEFORE - 1])
            self._young = set()

    def forget(self, key: str) -> None:
        self._young.discard(key)
        for old in self._old:
            old.discard(key)
