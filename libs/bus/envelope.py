"""CloudEvents 1.0 over Kafka: attributes in `ce_` headers and the payload untouched (binary mode); on reading also one
JSON object that holds both (structured mode), because other systems may find that easier.

Guarantees: reading never raises, whatever the headers and the value are; what is wrong is said in `Incoming.fault`. On
writing, the three attributes that never change are made once. A record costs a few microseconds each way.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from libs.bus.ids import event_id
from libs.bus.port import Incoming, Outgoing
from libs.observe import trace

#: What one record may carry in headers; more is a hostile or broken producer.
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 8 * 1024
#: Ids are told on: as the cause of all that follows, in every record of it.
MAX_ID_BYTES: Final = 1024
#: Bytes of a record's key that are looked at. Ours are far shorter; one from outside only tells events apart.
MAX_KEY_BYTES: Final = 1024

_STRUCTURED: Final = "application/cloudevents+json"
_BATCHED: Final = "application/cloudevents-batch+json"
_NAME: Final = re.compile(r"[a-z0-9]{1,32}")
#: Attributes with a place of their own in Incoming.
_OWN: Final = frozenset({"specversion", "id", "source", "type"})
_JSON_TYPE: Final = (("content-type", b"application/json"),)
#: These travel as plain headers, not as `ce_` attributes.
_PLAIN: Final = frozenset({"traceparent", "tracestate"})

Headers = Sequence[tuple[str, bytes | None]]


class Writer:
    """Headers of records of one source."""

    def __init__(self, source: str) -> None:
        self._head = (("ce_specversion", b"1.0"), ("ce_source", source.encode()))
        self._types: dict[str, tuple[tuple[str, bytes], ...]] = {}

    def headers(self, record: Outgoing) -> list[tuple[str, bytes | None]]:
        """Raises ValueError for an attribute name that CloudEvents does not allow: a programming error."""
        fixed = self._types.get(record.type)
        if fixed is None:
            if not record.type:
                raise ValueError("an event has a type")
            fixed = (*self._head, ("ce_type", record.type.encode()))
            if len(self._types) < 256:
                self._types[record.type] = fixed
        headers: list[tuple[str, bytes | None]] = [*fixed, ("ce_id", (record.id or event_id()).encode())]
        if record.value is not None:
            headers += _JSON_TYPE
        for name, value in record.headers.items():
            if name in _PLAIN:
                headers.append((name, value.encode()))
            elif _NAME.fullmatch(name) and name not in _OWN:
                headers.append(("ce_" + name, value.encode()))
            else:
                raise ValueError(f"{name!r} is no name for an attribute of an event")
        return headers


def read(topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None, headers: Headers) -> Incoming:
    """The record with its envelope, or with `fault`."""
    text = key[:MAX_KEY_BYTES].decode(errors="backslashreplace")[:MAX_KEY_BYTES] if key else ""
    if len(headers) > MAX_HEADERS:
        return Incoming(topic, partition, offset, text, value, "", fault=f"more than {MAX_HEADERS} headers")
    found: dict[str, str] = {}
    content = ""
    for name, raw in headers:
        if raw is None:
            continue
        if len(raw) > MAX_HEADER_BYTES:
            return Incoming(
                topic, partition, offset, text, value, "", fault=f"a header of more than {MAX_HEADER_BYTES} bytes"
            )
        try:
            said = raw.decode()
        except UnicodeDecodeError:
            if name.startswith("ce_") or name in _PLAIN or name.lower() == "content-type":
                return Incoming(topic, partition, offset, text, value, "", fault="a header is not UTF-8")
            continue
        if name.startswith("ce_"):
            found.setdefault(name[3:], said)
        elif name in _PLAIN:
            found[name] = said
        elif name == "content-type" or name.lower() == "content-type":
            content = said
    if content and content != "application/json":
        kind = content.partition(";")[0].strip().lower()
        if kind == _STRUCTURED:
            return _structured(topic, partition, offset, text, value, found)
        if kind == _BATCHED:
            return Incoming(topic, partition, offset, text, value, "", fault="batched mode is not supported on Kafka")
    _trace(found)
    version = found.pop("specversion", "")
    id, source, type = found.pop("id", ""), found.pop("source", ""), found.pop("type", "")
    if len(id) > MAX_ID_BYTES:
        return Incoming(topic, partition, offset, text, value, "", fault=_LONG_ID)
    if version == "1.0" and id and source and type:
        return Incoming(topic, partition, offset, text, value, type, id, source, found)
    return Incoming(
        topic, partition, offset, text, value, "", id, source, found, _what_is_wrong(version, id, source, type)
    )


def _trace(headers: dict[str, str]) -> None:
    """What is no trace context is dropped, and what vendors added to it with it."""
    said = headers.pop("traceparent", "")
    if said and (context := trace.valid(said)):
        headers["traceparent"] = context
    else:
        headers.pop("tracestate", None)


_LONG_ID: Final = f"a CloudEvents id of more than {MAX_ID_BYTES} characters"


def _what_is_wrong(version: str, id: str, source: str, type: str) -> str:
    if not (version or id or source or type):
        return "no CloudEvents envelope: neither ce_ headers nor structured mode"
    if version != "1.0":
        return f"CloudEvents specversion {version[:32]!r}, not '1.0'" if version else "no CloudEvents specversion"
    missing = [name for name, value in (("id", id), ("source", source), ("type", type)) if not value]
    return f"CloudEvents attributes missing or empty: {', '.join(missing)}"


class _Event(msgspec.Struct):
    specversion: str
    id: str
    source: str
    type: str
    data: msgspec.Raw = msgspec.Raw()
    data_base64: str | None = None
    datacontenttype: str = ""


_event: Final = msgspec.json.Decoder(_Event)
_whole: Final = msgspec.json.Decoder(dict[str, Any])
_string: Final = msgspec.json.Decoder(str)
_NOT_EXTENSIONS: Final = frozenset({*_OWN, "data", "data_base64", "datacontenttype", "dataschema", "subject", "time"})


def _structured(
    topic: str, partition: int, offset: int, key: str, value: bytes | None, plain: Mapping[str, str]
) -> Incoming:
    def fault(why: str) -> Incoming:
        return Incoming(topic, partition, offset, key, value, "", fault=why)

    if value is None:
        return fault("structured mode without a value")
    try:
        event = _event.decode(value)
        whole = _whole.decode(value)
        payload = _payload(event)
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError) as error:
        return fault(f"structured mode that cannot be read: {str(error)[:200]}")
    if not (event.specversion == "1.0" and event.id and event.source and event.type):
        return fault(_what_is_wrong(event.specversion, event.id, event.source, event.type))
    if len(event.id) > MAX_ID_BYTES:
        return fault(_LONG_ID)
    if len(whole) > MAX_HEADERS or len(event.source) + len(event.type) > MAX_HEADER_BYTES:
        return fault(f"more than {MAX_HEADERS} attributes, or longer ones than {MAX_HEADER_BYTES} characters")
    headers = {name: said for name, said in plain.items() if name in _PLAIN}
    for name, said in whole.items():
        if name in _NOT_EXTENSIONS or not _NAME.fullmatch(name):
            continue
        match said:
            case bool():
                headers[name] = "true" if said else "false"
            case str() | int() if len(said := str(said)) <= MAX_HEADER_BYTES:
                headers[name] = said
            case str() | int():
                return fault(f"the CloudEvents attribute {name} has more than {MAX_HEADER_BYTES} characters")
            case _:
                return fault(f"the CloudEvents attribute {name} is neither text, number nor truth value")
    _trace(headers)
    return Incoming(topic, partition, offset, key, payload, event.type, event.id, event.source, headers)


def _payload(event: _Event) -> bytes | None:
    if event.data_base64 is not None:
        return base64.b64decode(event.data_base64, validate=True)
    raw = bytes(event.data)
    if not raw or raw == b"null":
        return None
    kind = event.datacontenttype.partition(";")[0].strip().lower()
    if kind and not (kind.endswith(("/json", "+json"))) and raw.startswith(b'"'):
        return _string.decode(raw).encode()
    return raw
