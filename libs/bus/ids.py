"""Event ids: unique for ever, made without asking the operating system for every record."""

from __future__ import annotations

import itertools
import secrets

_prefix = secrets.token_hex(8)
_count = itertools.count(1)


def event_id() -> str:
    return f"{_prefix}-{next(_count)}"
