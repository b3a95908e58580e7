"""Records that the bus takes, whatever is said in them: many small items share one, a large item is divided.

Nothing that is published may be too large to be ever taken: it would be tried for ever, or end whoever sends it. So
every sender packs by encoded bytes, words from outside are cut, and the publisher drops what is too large all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from libs.bus import metrics
from libs.bus.port import Outgoing

log = structlog.get_logger()

#: Up to where one record is filled; a reader fetches about as much of a partition at once.
RECORD_BYTES: Final = 1024 * 1024
#: The largest record: what the topics take, less the batch's own bytes.
MOST_BYTES: Final = 4 * 1024 * 1024 - 64 * 1024
#: Around the items of a record: its key, its headers, the list itself.
_AROUND: Final = 32 * 1024
#: Characters of a key or an id from outside that are kept: each is several bytes in JSON at the worst.
KEPT: Final = 1000
_MARK: Final = "..."

T = TypeVar("T")
Halves = Callable[[T], Sequence[T]]
_encode: Final = msgspec.json.Encoder().encode


def packed(items: Iterable[T], halves: Halves[T], *, most: int = RECORD_BYTES) -> Iterator[tuple[Sequence[T], bytes]]:
    """Records' items with their value `{"items": [...]}`, in order. An item of more than `most` bytes is divided by
    `halves` (one that cannot be answers itself alone) and travels alone otherwise; smaller ones share a record up to
    RECORD_BYTES."""
    left = deque(items)
    some: list[T] = []
    parts: list[bytes] = []
    size = 0
    while left:
        item = left.popleft()
        part = _encode(item)
        if len(part) > most:
            smaller = halves(item)
            if len(smaller) > 1:
                left.extendleft(reversed(smaller))
                continue
        if some and size + len(part) > RECORD_BYTES - _AROUND:
            yield some, _value(parts)
            some, parts, size = [], [], 0
        some.append(item)
        parts.append(part)
        size += len(part) + 1
    if some:
        yield some, _value(parts)


def _value(parts: Sequence[bytes]) -> bytes:
    return b'{"items":[' + b",".join(parts) + b"]}"


#: An item that goes into a record of its own is divided above this.
ALONE: Final = MOST_BYTES - _AROUND


def halved(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    middle = len(items) // 2
    return items[:middle], items[middle:]


def encoded_size(item: Any) -> int:
    return len(_encode(item))


def record_size(record: Outgoing) -> int:
    """Bytes of key, value and headers."""
    headers = sum(len(name) + len(value) for name, value in record.headers.items())
    return len(record.key) + len(record.value or b"") + headers


#: Bytes of one publication: so many are acknowledged well within its deadline.
BATCH_BYTES: Final = 8 * 1024 * 1024


def in_batches(records: Sequence[Outgoing], most: int) -> Iterator[Sequence[Outgoing]]:
    """In order, at most so many and at most so many bytes at once (one that is larger goes alone)."""
    start, size = 0, 0
    for n, record in enumerate(records):
        own = record_size(record)
        if n > start and (n - start >= most or size + own > BATCH_BYTES):
            yield records[start:n]
            start, size = n, 0
        size += own
    if start < len(records):
        yield records[start:]


def cut(text: str, most: int = KEPT) -> str:
    """At most `most` characters, with a mark where there were more."""
    return text if len(text) <= most else text[: most - len(_MARK)] + _MARK


def dropped(topic: str, key: str, size: int) -> None:
    """A record that no try could bring through. Its sender is not failed for it: it would try again for ever."""
    metrics.TOO_LARGE.labels(topic).inc()
    log.error("record too large, dropped", topic=topic, key=cut(key, 200), bytes=size)
