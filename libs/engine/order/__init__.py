"""Ordering policies by name. A policy keeps state, so each run gets its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from libs.engine.fair.little import LittleService
from libs.engine.order.ageing import DAY, Ageing
from libs.engine.order.attained import many_levels, two_levels
from libs.engine.order.base import NEVER, Fifo, Item, Order, Rank
from libs.engine.order.drystone import Drystone, Parameters
from libs.engine.order.gittins import Gittins
from libs.engine.order.predicted import Predicted, PredictedRemaining
from libs.engine.order.services import Services
from libs.engine.order.shortest import Shortest, ShortestRemaining


@dataclass(frozen=True, slots=True)
class Scene:
    """What a policy may know of where it works: GPUs of the cluster, seconds between checkpoints (0: always saved),
    GPUs that each tenant deserves. `parameters` are of Drystone's own order; its checkpoint is the scene's."""

    gpus: float
    checkpoint: float = 1800.0
    deserved: Mapping[str, float] = field(default_factory=dict)
    parameters: Parameters = field(default_factory=Parameters)


def _drystone(scene: Scene) -> Order:
    return Drystone(scene.gpus, replace(scene.parameters, checkpoint=max(scene.checkpoint, 1.0)), scene.deserved)


ORDERS: Final[dict[str, Callable[[Scene], Order]]] = {
    "ageing": lambda _: Ageing(),
    "ageing-6h": lambda _: Ageing(DAY / 4),
    "ageing-4d": lambda _: Ageing(4 * DAY),
    "drystone": _drystone,
    "fifo": lambda _: Fifo(),
    "fifo-backfill": lambda _: Order(),
    "fifo+backfill": lambda _: Order(),  # the same
    "gittins": lambda _: Gittins(),
    "gittins-1": lambda _: Gittins(margin=1.0),
    "gittins-8": lambda _: Gittins(margin=8.0),
    "las": lambda _: many_levels(),
    "predicted": lambda _: Predicted(),
    "predicted-remaining": lambda _: PredictedRemaining(),
    "two-level": lambda _: two_levels(),
    "services": lambda _: Services(LittleService()),
    "services-by-age": lambda _: Services(None),
    "services-without-lending": lambda _: Services(LittleService(), lends=False),
    "services-without-moves": lambda _: Services(LittleService(), moves=False),
    "sjf": lambda _: Shortest(),
    "srtf": lambda _: ShortestRemaining(),
}

__all__ = ["NEVER", "ORDERS", "Drystone", "Fifo", "Item", "Order", "Parameters", "Rank", "Scene", "Services"]
