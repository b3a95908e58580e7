"""A class of alike tasks, seen only where a region lets it: the same answers as `Feasibility`, for some rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from libs.domain.verdicts import Reason, Verdict
from libs.engine.columns import Ints
from libs.engine.feasible import Feasibility
from libs.engine.filters import CODE, DEAD
from libs.engine.topology.domains import Region

_ELSEWHERE: Final = CODE[Reason.DOMAIN]


class Confined(Feasibility):
    """Good for the length of one decision, in which nodes change their room and not their facts."""

    def __init__(self, base: Feasibility, region: Region) -> None:
        self._base = base
        self._region = region
        self.ask = base.ask
        self.ruled = base.ruled
        self.codes = self._outside(base.codes)
        self.keys = region.rows
        self.told: tuple[int, Verdict] | None = None

    def _outside(self, codes: Ints) -> Ints:
        barred = ~self._region.mask & (codes != DEAD)
        return np.where(barred, _ELSEWHERE, codes)

    def refresh(self) -> None:
        self._base.refresh()

    def now(self) -> Ints:
        return np.where(self._region.mask, self._base.now(), -1)

    def best(self) -> int:
        rows = self._region.rows
        if not len(rows):
            return -1
        keys = self._base.now()[rows]
        at = int(keys.argmax())
        return int(rows[at]) if keys[at] >= 0 else -1

    def top(self, count: int) -> list[int]:
        rows = self._region.rows
        keys = self._base.now()[rows]
        order = np.argsort(-keys, kind="stable")[:count]
        return [int(rows[at]) for at in order.tolist() if keys[at] >= 0]

    def fits(self, row: int) -> bool:
        return bool(self._region.mask[row]) and self._base.fits(row)

    def admits(self, row: int) -> bool:
        return bool(self._region.mask[row]) and self._base.admits(row)

    def more_nodes_help(self) -> bool:
        return self._base.more_nodes_help()

    def slots(self) -> Ints:
        return np.where(self._region.mask, self._base.slots(), 0)

    def codes_now(self) -> Ints:
        return self._outside(self._base.codes_now())
