"""Records that carry several items each, taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import structlog

from libs.bus.letters import dead_letter
from libs.bus.port import Incoming, Outgoing
from libs.bus.positions import InHand, Positions

log = structlog.get_logger()

T = TypeVar("T")


class Reports(Protocol):
    """Where what ends at once is reported."""

    def letter(self, record: Outgoing, held: InHand) -> None:
        """A record that cannot be read: its dead letter, after which it is finished."""
        ...

    def read_finished(self) -> None:
        """A record had nothing to carry out: its offset may go."""
        ...


def items_of(
    batch: Sequence[Incoming], decode: Callable[[bytes], Sequence[T]], positions: Positions, reports: Reports
) -> list[tuple[T, InHand]]:
    """All items of the records, each with the record that it came in: that is finished when all of its items are. What
    cannot be read (`decode` raises msgspec.MsgspecError) becomes a dead letter and stops nobody."""
    items: list[tuple[T, InHand]] = []
    for record in batch:
        try:
            if record.fault or record.value is None:
                raise ValueError(record.fault or "no content")
            found = decode(record.value)
        except (msgspec.MsgspecError, ValueError) as error:
            log.warning(
                "cannot be read", topic=record.topic, partition=record.partition, offset=record.offset, why=str(error)
            )
            reports.letter(dead_letter(record, str(error)), positions.read(record))
            continue
        held = positions.read(record, parts=len(found))
        items.extend((item, held) for item in found)
        if not found:
            reports.read_finished()
    return items
