"""Faults of our own at one object, caught so that all others are served: counted, and told once with the traceback."""

from __future__ import annotations

from types import TracebackType
from typing import Final

import structlog
from prometheus_client import Counter

log = structlog.get_logger()

#: Places in the code that are remembered as told.
_MOST_KNOWN: Final = 1_000


class Faults:
    """`counter` has one label: what failed."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._known: set[str] = set()

    def seen(self, what: str, of: str, error: Exception) -> None:
        """`of` names the object. The log has the traceback the first time that something fails in this place of the
        code, one line each time."""
        self._counter.labels(what).inc()
        place = _place(error.__traceback__)
        fresh = place not in self._known and len(self._known) < _MOST_KNOWN
        if fresh:
            self._known.add(place)
        log.error(
            "a fault at one object, kept from all others", what=what, of=of[:300], error=words(error), place=place,
            exc_info=error if fresh else None,
        )  # fmt: skip


def words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _place(traceback: TracebackType | None) -> str:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback is not None else ""
