"""Actions, least disruptive first. Each is asked in turn until one decides; the order is this one tuple."""

from __future__ import annotations

from typing import Final

from libs.engine.actions.allocate import allocate
from libs.engine.actions.base import Action
from libs.engine.actions.consolidate import consolidate
from libs.engine.actions.expect import expect
from libs.engine.actions.preempt import preempt
from libs.engine.actions.recall import recall
from libs.engine.actions.reclaim import reclaim
from libs.engine.actions.service import service
from libs.engine.actions.shrink import shrink

ACTIONS: Final[tuple[Action, ...]] = (
    allocate,
    expect,
    recall,
    consolidate,
    shrink,
    reclaim,
    preempt,
    service,
)
