"""Kubernetes quantities as exact integers: "250m", "1.5", "2e3", "16Gi", "1500M".

Requests are rounded up and capacities down, so that a sum of integers never promises more than a node has. A text that
is no quantity raises ValueError; readers of objects turn that into a finding of their own. What is beyond 64 bits, or
finer than a billionth, is the largest or least amount there is, as at the API server. Results are cached: a cluster
uses a few hundred spellings.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

_SUFFIXES: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_MIB: Final = 2**20
_LARGEST: Final = Decimal(2**63)
_LEAST: Final = Decimal("1e-9")
#: Longer texts are read as well, and not remembered.
_LONGEST: Final = 64

Quantity = str | int | float


def exact(text: Quantity) -> Decimal:
    """The value in base units (cores, bytes, devices)."""
    if isinstance(text, bool) or not isinstance(text, str):
        text = repr(text)
    return _exact(text) if len(text) <= _LONGEST else _exact.__wrapped__(text)


@lru_cache(maxsize=8192)
def _exact(text: str) -> Decimal:
    number, unit = text, Decimal(1)
    for size in (2, 1):
        suffix = text[-size:]
        if suffix in _SUFFIXES and len(text) > size:
            number, unit = text[:-size], _SUFFIXES[suffix]
            break
    if not number or number[0].isspace() or number[-1].isspace() or "_" in number or not number.isascii():
        raise ValueError(f"{text[:_LONGEST]!r} is not a quantity")
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ValueError(f"{text[:_LONGEST]!r} is not a quantity") from None
    if not value.is_finite():
        raise ValueError(f"{text[:_LONGEST]!r} is not a quantity")
    if not value:
        return Decimal(0)
    size = value.adjusted() + unit.adjusted()
    if size < -12:
        return _LEAST.copy_sign(value)
    if size > 20:
        return _LARGEST.copy_sign(value)
    value *= unit
    return value if abs(value) <= _LARGEST else _LARGEST.copy_sign(value)


def _whole(value: Decimal, up: bool) -> int:
    return int(value.to_integral_value(ROUND_CEILING if up else ROUND_FLOOR))


def milli(text: Quantity, up: bool) -> int:
    """Thousandths of the base unit: milli-cores."""
    return _scaled(text, 1000, up)


def units(text: Quantity, up: bool) -> int:
    """Whole base units: bytes, devices, pods."""
    return _scaled(text, 1, up)


def _scaled(text: Quantity, scale: int, up: bool) -> int:
    short = not isinstance(text, str) or len(text) <= _LONGEST
    return _known(text, scale, up) if short else _known.__wrapped__(text, scale, up)


@lru_cache(maxsize=8192)
def _known(text: Quantity, scale: int, up: bool) -> int:
    return _whole(exact(text) * scale, up)


def mib(size: int, up: bool) -> int:
    """Bytes to MiB."""
    return -(-size // _MIB) if up else size // _MIB
