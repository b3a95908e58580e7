"""W3C trace context (traceparent, version 00) across processes: read, continue, begin.

Spans themselves are OpenTelemetry's business; what must never break is that the trace id of a submitted job reaches
the write that binds it. A header that is not valid is dropped, as the specification asks, never passed on.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_rng = random.SystemRandom()


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


def begin(sampled: bool = True) -> TraceContext:
    """A new trace."""
    return TraceContext(f"{_rng.getrandbits(128) | 1:032x}", f"{_rng.getrandbits(64) | 1:016x}", sampled)


def child(traceparent: str) -> str:
    """The next hop of a trace: same trace id, a span id of our own. A new trace where there is no valid one."""
    parent = parse(traceparent)
    if parent is None:
        return str(begin())
    return str(TraceContext(parent.trace_id, f"{_rng.getrandbits(64) | 1:016x}", parent.sampled))
