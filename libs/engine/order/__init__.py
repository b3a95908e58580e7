"""Ordering policies by name. A policy keeps state, so each run gets its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from libs.engine.order.attained import many_levels, two_levels
from libs.engine.order.base import NEVER, Fifo, Item, Order, Rank
from libs.engine.order.shortest import Shortest, ShortestRemaining

ORDERS: Final[dict[str, Callable[[], Order]]] = {
    "fifo": Fifo,
    "fifo-backfill": Order,
    "sjf": Shortest,
    "srtf": ShortestRemaining,
    "las": many_levels,
    "two-level": two_levels,
}

__all__ = ["NEVER", "ORDERS", "Fifo", "Item", "Order", "Rank"]
