"""What its owner declares of how a pod runs: whether it may be evicted, for how long it will run, how often it saves.

Read from the annotations of a pod, or of its PodGroup for all its pods; the pod's own word stands first. A value that
cannot be read is as good as none, and `notes` says so: how a pod is protected is no reason to refuse to run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from libs.domain import keys

#: Seconds that may be declared, about three years.
MOST_SECONDS: Final = 10**8
KEYS: Final = frozenset({keys.PREEMPTIBLE, keys.EXPECTED, keys.CHECKPOINT})


class Declared(msgspec.Struct, frozen=True):
    """Fields as of `JobHead`."""

    preemptible: bool = True
    expected_s: int = 0
    checkpoint_s: int = 0

    def annotations(self) -> dict[str, str]:
        """What `declared` reads this from."""
        said = {} if self.preemptible else {keys.PREEMPTIBLE: "false"}
        if self.expected_s:
            said[keys.EXPECTED] = str(self.expected_s)
        if self.checkpoint_s:
            said[keys.CHECKPOINT] = str(self.checkpoint_s)
        return said


NOTHING: Final = Declared()


def declared(own: Mapping[str, str], group: Mapping[str, str] | None = None) -> Declared:
    if not group:
        if keys.PREEMPTIBLE not in own and keys.EXPECTED not in own and keys.CHECKPOINT not in own:
            return NOTHING
        both = own
    else:
        both = {**{key: group[key] for key in KEYS if key in group}, **{key: own[key] for key in KEYS if key in own}}
    return Declared(
        preemptible=both.get(keys.PREEMPTIBLE, "").strip().lower() != "false",
        expected_s=_seconds(both.get(keys.EXPECTED)) or 0,
        checkpoint_s=_seconds(both.get(keys.CHECKPOINT)) or 0,
    )


def saved_at(own: Mapping[str, str]) -> float:
    """When the pod's work was saved last, as it said: seconds since the epoch, 0 where it said nothing."""
    return max(0.0, _moment(own.get(keys.CHECKPOINT_AT)) or 0.0)


def notes(own: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each annotation that says something which cannot be read."""
    found = []
    said = own.get(keys.PREEMPTIBLE)
    if said is not None and said.strip().lower() not in ("true", "false"):
        found.append(f"{keys.PREEMPTIBLE}: {said[:40]!r} is neither true nor false and is ignored")
    for key in (keys.EXPECTED, keys.CHECKPOINT):
        said = own.get(key)
        if said is not None and _seconds(said) is None:
            found.append(f"{key}: {said[:40]!r} is not a number of seconds from 1 to {MOST_SECONDS} and is ignored")
    said = own.get(keys.CHECKPOINT_AT)
    if said is not None and _moment(said) is None:
        found.append(f"{keys.CHECKPOINT_AT}: {said[:40]!r} is neither RFC 3339 nor Unix seconds and is ignored")
    return tuple(found)


def _seconds(text: str | None) -> int | None:
    text = (text or "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        return None
    seconds = int(text)
    return seconds if 0 < seconds <= MOST_SECONDS else None


def _moment(text: str | None) -> float | None:
    text = (text or "").strip()[:40]
    if text.isascii() and text.isdecimal() and len(text) <= 10:
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
