"""W3C trace context (traceparent, version 00) across processes: what is read is checked, and passed on as it came.

Drystone records no spans of its own, so it passes on its caller's context, as the specification asks of who takes no
part: the trace id of what asked for a job stands on every record that follows, up to the status that says it is bound.
A header that is not valid is dropped, never passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    trace_id: str
    span_id: str
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse(traceparent: str) -> TraceContext | None:
    """None for anything that the specification calls invalid."""
    found = _FORM.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))


def valid(traceparent: str) -> str:
    """What is passed on of it: the same context in version 00, empty where there is none."""
    context = parse(traceparent) if traceparent else None
    return str(context) if context is not None else ""
