"""What a victim is told on its pod: for whom it goes and by which rule; and what others read there."""

from __future__ import annotations

import re
from typing import Final

_SAID: Final = re.compile(r"drystone: evicted for (\S+) \((\w+)\)")


def notice(beneficiary: str, rule: str) -> str:
    """The message of the pod's condition DisruptionTarget."""
    return f"drystone: evicted for {beneficiary} ({rule})"


def noticed(message: str) -> tuple[str, str]:
    """(beneficiary, rule) of a condition's message; two empty strings where it is not of that kind."""
    said = _SAID.fullmatch(message)
    return (said[1], said[2]) if said is not None else ("", "")
