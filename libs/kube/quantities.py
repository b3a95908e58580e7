"""Kubernetes quantities as exact integers: "250m", "1.5", "2e3", "16Gi", "1500M".

Requests are rounded up and capacities down, so that a sum of integers never promises more than a node has. A text that
is no quantity raises ValueError; readers of objects turn that into a finding of their own. Results are cached: a
cluster uses a few hundred spellings. What is longer than any that the API server writes is no quantity.
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
#: Beyond what the API server itself stores; keeps hostile exponents from growing into giant integers.
_LARGEST: Final = Decimal(2**63)
_LONGEST: Final = 64

Quantity = str | int | float


@lru_cache(maxsize=8192)
def exact(text: Quantity) -> Decimal:
    """The value in base units (cores, bytes, devices)."""
    if isinstance(text, bool) or not isinstance(text, str):
        text = repr(text)
    if len(text) > _LONGEST:
        raise ValueError(f"{text[:20]!r}, {len(text)} characters long, is not a quantity")
    number, unit = text, Decimal(1)
    for size in (2, 1):
        suffix = text[-size:]
        if suffix in _SUFFIXES and len(text) > size:
            number, unit = text[:-size], _SUFFIXES[suffix]
            break
    if not number or number[0].isspace() or number[-1].isspace() or "_" in number:
        raise ValueError(f"{text!r} is not a quantity")
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a quantity") from None
    if not value.is_finite() or abs(value.adjusted()) > 40:
        raise ValueError(f"{text!r} is not a quantity")
    value *= unit
    if abs(value) > _LARGEST:
        raise ValueError(f"{text!r} is too large")
    return value


def _whole(value: Decimal, up: bool) -> int:
    return int(value.to_integral_value(ROUND_CEILING if up else ROUND_FLOOR))


@lru_cache(maxsize=8192)
def milli(text: Quantity, up: bool) -> int:
    """Thousandths of the base unit: milli-cores."""
    return _whole(exact(text) * 1000, up)


@lru_cache(maxsize=8192)
def units(text: Quantity, up: bool) -> int:
    """Whole base units: bytes, devices, pods."""
    return _whole(exact(text), up)


def mib(size: int, up: bool) -> int:
    """Bytes to MiB."""
    return -(-size // _MIB) if up else size // _MIB
