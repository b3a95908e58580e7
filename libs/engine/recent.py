"""A bounded memory of keys, for what must be recognised when it comes again.

Two sets that take turns, because forgetting one by one what came first is not cheap in a dictionary: its beginning has
to be looked for behind all that was deleted there, which costs up to half a millisecond at 200,000 keys.
"""

from __future__ import annotations

from collections.abc import Iterable


class Recent:
    """Knows the last `least` keys that were added at any rate, never more than twice as many."""

    __slots__ = ("_least", "_old", "_young")

    def __init__(self, least: int) -> None:
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._least = least

    def __len__(self) -> int:
        return len(self._young | self._old)

    def __contains__(self, key: str) -> bool:
        return key in self._young or key in self._old

    def add(self, keys: Iterable[str]) -> None:
        """Each counts as the newest again if it was known."""
        self._young.update(keys)
        if len(self._young) >= self._least:
            self._old, self._young = self._young, set()

    def forget(self, key: str) -> None:
        self._young.discard(key)
        self._old.discard(key)
