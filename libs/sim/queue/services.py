"""The queue simulator with the services' own engine in the loop: their line, their shares, their evictions.

Who goes next is `fair.Line` over the queues, who fits, who yields and where room is kept is `PlacementEngine`, with the
services' defaults; here is only what the ledger, the watcher and the binder do around it, in virtual time and without
delay: victims leave and beneficiaries start at once. A tenant is a queue; a fence is what it deserves. Run times are
never declared; ends are predicted from earlier runs of the same queue and size. Who moves is placed again at once.

Not played: several replicas, refusals by the ledger, and the rule that bounds evaluations of hopeless jobs. Who cannot
fit by a count of free GPUs, and may evict or move nobody, is not put to the engine: its answer is known. Who found
nobody to yield asks for evictions again after a minute, and for moves after MOVES_AGAIN_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import Final

from libs.domain.resources import Charge
from libs.engine.actions.consolidate import RULE as CONSOLIDATE
from libs.engine.api import Reserved
from libs.engine.fair import Line
from libs.engine.fair.shares import WITHIN
from libs.engine.order.base import Item
from libs.engine.reserve import lasts
from libs.sim.queue.cluster import WHOLE
from libs.sim.queue.facts import EPOCH, EngineLoop, Kept
from libs.sim.queue.loop import LOOK, Lane

#: Defaults of the services' settings.
AFTER_S: Final = 60.0
TURN_S: Final = 600.0
#: A head that got no room kept is looked at again no sooner.
AGAIN_S: Final = 10.0
#: The same where those in the way yield once it has waited too long.
YIELDING_AGAIN_S: Final = 60.0
#: A kind of jobs for which no moves were found asks for some again no sooner: here a plan takes as long as weeks of
#: virtual time without one.
MOVES_AGAIN_S: Final = 600.0
_HEADS: Final = 16


class ServicesLoop(EngineLoop):
    """Who starts, who yields, and whose room is kept."""

    # -- decisions ----------------------------------------------------------------------------------------------------
    def _fill(self, lanes: Iterable[Lane]) -> None:
        self._say_saved()
        self._engine.decide([], self._clock)
        if any(kept.until <= self.now for kept in self._kept.values()):
            self._lapse()
            lanes = self._lanes.values()
        self._tell_histories()
        line: Line[int] = Line(self._engine.shares)
        standing: dict[int, Lane] = {}
        for lane in lanes:
            self._offer(line, standing, lane)
        while (entry := line.next()) is not None:
            lane = standing.pop(entry.key)
            before, item = self._waiting, self._items[entry.key]
            if not self._decide(item):
                continue
            # Somebody yielded and waits again, or this one may yield.
            if self._waiting >= before or any(priority > item.priority for _, _, priority in self._lanes):
                for other in self._lanes.values():
                    self._offer(line, standing, other)
            else:
                self._offer(line, standing, lane)
            line.touched(self._accounts)
        self._keep_room()

    def _offer(self, line: Line[int], standing: dict[int, Lane], lane: Lane) -> None:
        item = lane.head()
        if item is None or item.key in line:
            return
        vain = self._vain.get(self._kind(item), 0.0) > self.now
        if not self._could_fit(item) and (vain or not (self._could_evict(item) or self._could_move(item))):
            return
        standing[item.key] = lane
        line.put(item.key, item.tenant, (*item.rank, item.key), (lane.milli, 0, 0))

    def _could_fit(self, item: Item) -> bool:
        """What no engine could find room for, beside what is kept for others, is not asked for."""
        cluster = self.cluster
        free = cluster.free
        others = [kept for tenant, kept in self._kept_milli.items() if self._kept[tenant].key != item.key]
        if others:
            free = list(free)
            for kept in others:
                for at, milli in kept.items():
                    free[at] -= milli // WHOLE
        asked = self.jobs[item.key].milli
        if asked < WHOLE and any(idle >= asked for idle in cluster.shared.values()):
            return True
        gpus = max(1, asked // WHOLE)
        if gpus <= cluster.width:
            return max(free) >= gpus
        return sum(free) >= gpus and sum(idle == cluster.width for idle in free) >= gpus // cluster.width

    def _could_evict(self, item: Item) -> bool:
        if self._little is not None:
            claims = item.since + self._little.patience_s
            if self.now >= claims:
                return True
            self._look = min(self._look, claims)
        if any(running and priority < item.priority for priority, running in self._priorities.items()):
            return True
        shares = self._engine.shares
        ask = (self.jobs[item.key].milli, 0, 0)
        return not shares.silent and shares.standing(item.tenant, ask).tier == WITHIN

    def _could_move(self, item: Item) -> bool:
        """Whether as much is idle in all, beside what is kept for others, as it asks for."""
        if not self._moves or self._unmoved.get(self._kind(item), 0.0) > self.now:
            return False
        cluster = self.cluster
        kept = sum(
            sum(of_node.values()) for tenant, of_node in self._kept_milli.items() if self._kept[tenant].key != item.key
        )
        return cluster.size * cluster.width * WHOLE - cluster.used_milli - kept >= self.jobs[item.key].milli

    def _decide(self, item: Item) -> bool:
        """Whether it starts."""
        decision = self._engine.decide([self._job(item)], self._clock)[0]
        if not decision.placements:
            self._engine.settle()
            if not self._could_fit(item):
                until = decision.verdict.until - EPOCH
                self._unmoved[self._kind(item)] = self.now + MOVES_AGAIN_S
                until = self._vain[self._kind(item)] = until if until > self.now else self.now + LOOK
                self._look = min(self._look, until)
            return False
        leaving = sorted({int(victim.uid.partition(".")[0]) for victim in decision.victims})
        for key in leaving:
            run = self.runs[key]
            self._record(run)
            # Before it lines up again: else the engine takes its run for a wait.
            self._tell_history(run.item.tenant, self._accounts[run.item.tenant])
            self._evict(run)
            self._waiting_milli += run.milli
        self._engine.settle()
        self._begin(item, decision.placements)
        if decision.rule == CONSOLIDATE:
            for key in leaving:  # they come again at once, and have a place
                self._decide(self._items[key])
        return True

    # -- room that is kept --------------------------------------------------------------------------------------------
    def _keep_room(self) -> None:
        heads: dict[str, list[Item]] = {}
        for (tenant, _, _), lane in self._lanes.items():
            if lane.head() is not None:
                valid = (item for rank, _, item in lane.heap if item.rank is rank)
                heads.setdefault(tenant, []).extend(nsmallest(_HEADS, valid, key=_place))
        for tenant, items in heads.items():
            item = self._turn(tenant, sorted(items, key=_place)[:_HEADS])
            if item is None:
                continue
            due = item.submitted + AFTER_S
            key, again = self._again.get(tenant, (-1, 0.0))
            if key == item.key:
                due = max(due, again)
            if due > self.now:
                self._look = min(self._look, due)
                continue
            if self._all_yield(item):
                continue
            job = self._job(item)
            milli = self.jobs[item.key].milli
            reserved = None
            if self._engine.shares.entitled(tenant, (milli, 0, 0)):
                reserved = self._engine.reserve(job, self._clock)
                self._engine.settle()
            if reserved is None:
                self._again[tenant] = item.key, self.now + AGAIN_S
            elif reserved.yielding and item.rank[0]:
                self._again[tenant] = item.key, self.now + YIELDING_AGAIN_S
            else:
                self._reserve(item, reserved)
        for kept in self._kept.values():
            self._look = min(self._look, max(kept.until, self.now + 1e-3))

    def _all_yield(self, item: Item) -> bool:
        """Whether everybody would yield to it once it has waited too long. Then the engine's answer is known, that no
        room is kept yet: all jobs here save their work and declare no run time."""
        if self._little is None or not item.rank[0] or not self._engine.shares.silent:
            return False
        return all(not running or priority <= item.priority for priority, running in self._priorities.items())

    def _turn(self, tenant: str, items: Sequence[Item]) -> Item | None:
        """The first of the queue that had no turn of late, else the first; nobody while a better one has room kept."""
        kept = self._kept.get(tenant)
        holder = self._items[kept.key] if kept is not None else None
        for item in items:
            if holder is not None and _place(holder) <= _place(item):
                return None
            if item.key not in self._cooling:
                return item
        return items[0]

    def _reserve(self, item: Item, reserved: Reserved) -> None:
        self._release(item.tenant)
        seconds = lasts(reserved.start, self._clock, TURN_S, self._turns_had.get(item.key, 0))
        charges: dict[int, list[Charge]] = {}
        for placement in reserved.placements:
            charges.setdefault(self._rows[placement.node], []).append(placement.charge)
        self._kept[item.tenant] = Kept(item.key, self.now + seconds, charges)
        for at in charges:
            self._tell_node(at)

    def _lapse(self) -> None:
        for tenant, kept in list(self._kept.items()):
            if kept.until <= self.now:
                self._turns_had[kept.key] = self._turns_had.get(kept.key, 0) + 1
                self._release(tenant)
                self._cooling -= {key for key in self._cooling if self._items[key].tenant == tenant}
                self._cooling.add(kept.key)


def _place(item: Item) -> tuple[object, ...]:
    return (*item.rank, item.key)
