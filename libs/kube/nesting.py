"""Objects that are nested deeper than can be decoded.

The API server takes ten thousand levels in the parts of a custom resource that it does not know; the decoder gives up
at the interpreter's limit of recursion, and with one such object the whole list would be unreadable. Nothing that means
anything is nested that deep, so what lies deeper than DEEPEST becomes null.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

DEEPEST: Final = 256
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def flat(raw: bytes) -> bytes:
    """JSON text without what lies deeper than DEEPEST. Linear in its length."""
    parts: list[bytes] = []
    depth = kept = 0
    for token in _TOKEN.finditer(raw):
        kind = raw[token.start()]
        if kind in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                parts.append(raw[kept : token.start()])
        elif kind in b"]}":
            depth -= 1
            if depth == DEEPEST:
                parts.append(b"null")
                kept = token.end()
    if not parts:
        return raw
    parts.append(raw[kept:] if depth <= DEEPEST else b"")
    return b"".join(parts)


def readable(raw: bytes) -> bytes:
    """One object as it can be decoded: most by far have too few brackets to be nested deep."""
    return raw if raw.count(b"[") + raw.count(b"{") <= DEEPEST else flat(raw)


def decoded(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Raises msgspec.MsgspecError, and nothing else, where `raw` is no such thing."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        return decoder.decode(flat(raw))
