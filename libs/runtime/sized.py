"""Results that are kept, by the bytes that they were made of: texts from outside differ in size a thousandfold, and so
many of the largest may not fill the memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
V = TypeVar("V")
#: What an entry takes beside its text.
_ROOM: Final = 512


class KeptByBytes(Generic[P, V]):
    """`make` of a text and of whatever else that is hashable: the latest used results, of texts of at most `most` bytes
    together. An exception is not kept, nor is the result of a text that alone is larger."""

    def __init__(self, make: Callable[Concatenate[bytes, P], V], most: int) -> None:
        self._make = make
        self._most = most
        self._kept: OrderedDict[tuple[Any, ...], V] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __call__(self, text: bytes, /, *args: P.args, **kwargs: P.kwargs) -> V:
        key = (text, *args, *kwargs.items())
        kept = self._kept
        if key in kept:
            kept.move_to_end(key)
            return kept[key]
        made = self._make(text, *args, **kwargs)
        if len(text) + _ROOM <= self._most:
            kept[key] = made
            self.size += len(text) + _ROOM
            while self.size > self._most:
                oldest, _ = kept.popitem(last=False)
                self.size -= len(oldest[0]) + _ROOM
        return made


def kept_by_bytes(most: int) -> Callable[[Callable[Concatenate[bytes, P], V]], KeptByBytes[P, V]]:
    return lambda make: KeptByBytes(make, most)
