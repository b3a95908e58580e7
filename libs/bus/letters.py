"""What goes to people: dead letters (what could not be read or was refused, kept with its origin and the reason) and
statuses, each of a size that its topic takes whatever the words in it."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from libs.bus.pack import cut
from libs.bus.port import Incoming, Outgoing, onward
from libs.contracts.events import DeadLetter, EventType, JobStatus
from libs.contracts.topics import DEAD_LETTERS

#: Bytes of the record that are kept; the letter says when there was more.
MOST_QUOTED: Final = 64 * 1024
#: Bytes of a status; beyond it the details go and the words are cut.
MOST_STATUS: Final = 64 * 1024


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
    headers = onward(cut(record.id), record.headers.get("traceparent", ""))
    return Outgoing(
        DEAD_LETTERS.name, cut(record.key), msgspec.json.encode(letter), EventType.DEAD_LETTER, headers=headers
    )


def status_value(status: JobStatus) -> bytes:
    value = msgspec.json.encode(status)
    if len(value) <= MOST_STATUS:
        return value
    short = msgspec.structs.replace(
        status, id=cut(status.id), message=cut(status.message), verdict=None, turn=None, evicted=None
    )
    return msgspec.json.encode(short)
