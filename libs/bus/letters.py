"""Dead letters: what could not be read or was refused, kept with its origin and the reason."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from libs.bus.pack import cut
from libs.bus.port import Incoming, Outgoing
from libs.contracts.events import DeadLetter, EventType
from libs.contracts.topics import DEAD_LETTERS

#: Bytes of the record that are kept; the letter says when there was more.
MOST_QUOTED: Final = 64 * 1024


def dead_letter(record: Incoming, reason: str, *, id: str = "") -> Outgoing:
    """`id` is the event's own where its content was readable, else the record's."""
    value = record.value or b""
    letter = DeadLetter(
        reason=cut(reason),
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=cut(record.key),
        id=cut(id or record.id),
        value=base64.b64encode(value[:MOST_QUOTED]).decode(),
        truncated=len(value) > MOST_QUOTED,
    )
    return Outgoing(DEAD_LETTERS.name, cut(record.key), msgspec.json.encode(letter), EventType.DEAD_LETTER)
