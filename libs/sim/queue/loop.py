"""A queue in virtual time: arrivals, starts, evictions, ends, on a lean cluster, under any order.

Guaranteed: an item starts only in room that is free; nothing that fits is left waiting behind something that does not,
unless the order blocks; nobody is evicted in vain; every item ends; the same input gives the same output. Run times are
known to the loop alone, and to orders that say that they need them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from libs.engine.order.base import NEVER, Item, Order, Rank
from libs.sim.errors import SimulationError
from libs.sim.queue.cluster import WHOLE, Cluster
from libs.sim.queue.trace import TraceJob
from libs.sim.queue.victims import ByNode, Run, choose

Progress = Callable[[int], None]

#: While somebody may evict but nobody may be evicted yet, look again no sooner than this many seconds later.
LOOK = 60.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What an eviction costs: seconds until the work goes on, and seconds of run between two checkpoints (0: work is
    saved continuously)."""

    restart: float = 60.0
    checkpoint: float = 1800.0


@dataclass(slots=True)
class Outcome:
    """What happened to one job. Seconds, on its GPUs: `held` all, `lost` those that were done again or went into
    restarts. `wait`: all time from submit to end in which it did not run, restarts included."""

    job: TraceJob
    first: float = math.nan
    end: float = math.nan
    wait: float = 0.0
    held: float = 0.0
    lost: float = 0.0
    evictions: int = 0
    #: When it was evicted.
    evicted: list[float] = field(default_factory=list)

    def most_in(self, window: float) -> int:
        """The most evictions within any window of so many seconds."""
        times, first, most = self.evicted, 0, 0
        for last, at in enumerate(times):
            while times[first] <= at - window:
                first += 1
            most = max(most, last - first + 1)
        return most


@dataclass(slots=True)
class History:
    """Outcomes in the order of the jobs, and steps (time, busy GPUs, jobs that wait), each true from its time on."""

    gpus: int
    outcomes: list[Outcome]
    steps: list[tuple[float, float, int]] = field(default_factory=list)


class Lane:
    """Items that wait and ask for the same (of one tenant, where tenants matter): the first not fitting, none does."""

    __slots__ = ("heap", "milli")

    def __init__(self, milli: int) -> None:
        self.milli = milli
        self.heap: list[tuple[Rank, int, Item]] = []

    def push(self, item: Item) -> None:
        heapq.heappush(self.heap, (item.rank, item.key, item))

    def head(self) -> Item | None:
        heap = self.heap
        while heap:
            rank, _, item = heap[0]
            if item.rank is rank:
                return item
            heapq.heappop(heap)
        return None


class QueueLoop:
    """One cluster, one order, one run. `jobs` stand by submit time."""

    def __init__(self, cluster: Cluster, order: Order, costs: Costs, jobs: Sequence[TraceJob]) -> None:
        for job in jobs:
            if not cluster.could_ever(job.milli):
                gpus = cluster.size * cluster.width
                raise SimulationError(f"job {job.id} asks for {job.milli / WHOLE:g} GPUs, there are {gpus}")
        self.cluster = cluster
        self.order = order
        self.costs = costs
        self.jobs = jobs
        self.now = 0.0
        self.history = History(cluster.size * cluster.width, [Outcome(job) for job in jobs])
        self.runs: dict[int, Run] = {}
        self.by_node: list[dict[int, Run]] = [{} for _ in range(cluster.size)]
        self._items: list[Item] = []
        self._lanes: dict[tuple[str, int, int], Lane] = {}
        self._waiting = 0
        self._useful = 0  # milli GPUs
        self._ends: list[tuple[float, int, int]] = []  # (time, key, evictions at the start)
        self._turns: list[tuple[float, int, int]] = []  # (time, key, evictions when it was set)
        self._look = NEVER

    # -- the loop ---------------------------------------------------------------------------------------------------
    def run(self, progress: Progress | None = None) -> History:
        """`progress` is told how many jobs have ended."""
        left = len(self.jobs)
        while left:
            coming = len(self._items)
            self.now = now = min(
                self.jobs[coming].submit if coming < len(self.jobs) else NEVER,
                self._ends[0][0] if self._ends else NEVER,
                self._turns[0][0] if self._turns else NEVER,
                self._look,
            )
            if now == NEVER:
                raise SimulationError(f"{left} jobs wait for ever under {self.order.name}")
            ended = self._ends_due()
            if ended:
                left -= ended
                if progress is not None:
                    progress(len(self.jobs) - left)
            touched = self._arrivals_due()
            touched += self._turns_due()
            looks = self._look <= now
            if looks:
                self._look = NEVER
            if self._waiting and (ended or touched or looks):
                lanes = self._lanes.values() if ended or looks or self.order.blocks else dict.fromkeys(touched)
                self._fill(lanes)
                if self.order.evicts and self._waiting:
                    self._claim(self._lanes.values() if looks else dict.fromkeys(touched))
                    if ended:
                        self._look = min(self._look, now + LOOK)
            self._note()
        return self.history

    def _ends_due(self) -> int:
        ended = 0
        ends = self._ends
        while ends and ends[0][0] <= self.now:
            _, key, evictions = heapq.heappop(ends)
            if key in self.runs and self._items[key].evictions == evictions:
                self._end(key)
                ended += 1
        return ended

    def _arrivals_due(self) -> list[Lane]:
        touched = []
        jobs = self.jobs
        while len(self._items) < len(jobs) and jobs[len(self._items)].submit <= self.now:
            touched.append(self._arrive(len(self._items)))
        return touched

    def _turns_due(self) -> list[Lane]:
        due = self._moved()
        while self._turns and self._turns[0][0] <= self.now:
            _, key, evictions = heapq.heappop(self._turns)
            if self._items[key].evictions == evictions:
                due.append(key)
        return [self._line_up(self._items[key]) for key in due if self._items[key].rank]

    def _note(self) -> None:
        steps = self.history.steps
        step = (self.now, self._useful / WHOLE, self._waiting)
        if steps and steps[-1][0] == self.now:
            steps[-1] = step
        elif not steps or steps[-1][1:] != step[1:]:
            steps.append(step)

    # -- moves ------------------------------------------------------------------------------------------------------
    def _arrive(self, key: int) -> Lane:
        job = self.jobs[key]
        item = Item(key, job.tenant, job.milli / WHOLE, job.submit, job.submit, job.priority)
        if self.order.knows:
            item.declared = job.duration
        self._items.append(item)
        self.order.arrived(item, self.now)
        self._waiting += 1
        return self._line_up(item)

    def _line_up(self, item: Item) -> Lane:
        kind = self._kind(item)
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = Lane(kind[1])
        item.rank = self._rank(item)
        lane.push(item)
        turns = self._turn_of(item)
        if turns < NEVER:
            heapq.heappush(self._turns, (turns, item.key, item.evictions))
        return lane

    def _rank(self, item: Item) -> Rank:
        return self.order.rank(item, self.now)

    def _turn_of(self, item: Item) -> float:
        return self.order.turns(item, self.now)

    def _moved(self) -> list[int]:
        return self.order.moved()

    def _kind(self, item: Item) -> tuple[str, int, int]:
        """Tenant, milli GPUs and priority, as far as they matter: of those alike the first decides for all."""
        return item.tenant if self.order.by_tenant else "", self.jobs[item.key].milli, 0

    def _start(self, item: Item, run: Run) -> None:
        now = self.now
        key = item.key
        self.cluster.take(run.parts)
        self._useful += self.jobs[key].useful or run.milli
        self.runs[key] = run
        for part in run.parts:
            self.by_node[part[0]][key] = run
        outcome = self.history.outcomes[key]
        if math.isnan(outcome.first):
            outcome.first = now
        item.waited += now - item.since
        item.rank = ()  # its entry in the lane is void
        item.running = True
        item.since = now
        item.begins = now + (self.costs.restart if item.evictions else 0.0)
        self._waiting -= 1
        self.order.started(item, now)
        heapq.heappush(self._ends, (item.begins + self.jobs[key].duration - item.attained, key, item.evictions))

    def _leave(self, key: int) -> Run:
        run = self.runs.pop(key)
        self.cluster.give(run.parts)
        self._useful -= self.jobs[key].useful or run.milli
        for part in run.parts:
            self.by_node[part[0]].pop(key, None)
        self.history.outcomes[key].held += self.now - run.item.since
        run.item.running = False
        return run

    def _end(self, key: int) -> None:
        item = self._leave(key).item
        outcome = self.history.outcomes[key]
        item.attained = self.jobs[key].duration
        outcome.end = self.now
        outcome.evictions = item.evictions
        outcome.lost = max(0.0, outcome.held - item.attained)
        outcome.wait = item.waited + min(outcome.lost, item.evictions * self.costs.restart)
        self.order.ended(item, self.now)

    def _evict(self, run: Run) -> None:
        item = run.item
        lost, kept = self._loss(item)
        self._leave(item.key)
        self.history.outcomes[item.key].evicted.append(self.now)
        item.attained += kept
        item.since = self.now
        item.evictions += 1
        self._waiting += 1
        self.order.evicted(item, lost * item.gpus, self.now)
        self._line_up(item)

    def _loss(self, item: Item) -> tuple[float, float]:
        """What an eviction now would lose, the restart to come included, and what checkpoints hold; seconds."""
        run = max(0.0, self.now - item.begins)
        every = self.costs.checkpoint
        kept = run // every * every if every > 0 else run
        return self.now - item.begins - kept + self.costs.restart, kept

    # -- decisions --------------------------------------------------------------------------------------------------
    def _heads(self, lanes: Iterable[Lane]) -> list[tuple[float, Rank, int, Lane]]:
        front = self.order.front
        heads = []
        for lane in lanes:
            item = lane.head()
            if item is not None:
                heads.append((front(item, self.now), item.rank, item.key, lane))
        return heads

    def _fill(self, lanes: Iterable[Lane]) -> None:
        """Start what fits, best first. `lanes`: the only ones in which anything can have changed."""
        heads = self._heads(lanes)
        heapq.heapify(heads)
        none: set[int] = set()
        while heads:
            front, _, _, lane = heads[0]
            item = lane.head()
            parts = None if item is None or lane.milli in none else self.cluster.find(lane.milli)
            if item is None or parts is None:
                if self.order.blocks:
                    return
                none.add(lane.milli)
                heapq.heappop(heads)
                continue
            now_front = self.order.front(item, self.now)
            if now_front != front:
                heapq.heapreplace(heads, (now_front, item.rank, item.key, lane))
                continue
            self._start(item, Run(item, parts, lane.milli))
            item = lane.head()
            if item is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (self.order.front(item, self.now), item.rank, item.key, lane))

    def _claim(self, lanes: Iterable[Lane]) -> None:
        """Evict for those who may have others evicted, best first."""
        now = self.now
        order = self.order
        offers: tuple[ByNode, ByNode] | None = None
        vain: set[tuple[int, float]] = set()  # asks for which a better placed item found nobody
        for front, _, _, lane in sorted(self._heads(lanes), key=lambda head: head[:3]):
            while (lane.milli, front) not in vain and (item := lane.head()) is not None:
                at = order.claims_from(item, now)
                if at > now:
                    self._look = min(self._look, at)
                    break
                if offers is None:
                    offers = self._offers()
                offered = offers[1] if order.needs_fresh(item, now) else offers[0]
                victims = choose(self.cluster, offered, self.by_node, lane.milli, item, order, now, offers[0])
                if victims is None:
                    vain.add((lane.milli, front))
                    self._look = min(self._look, self._ripe(item))
                    break
                for run in victims:
                    self._evict(run)
                    for part in run.parts:
                        offers[0][part[0]].pop(run.item.key, None)
                        offers[1][part[0]].pop(run.item.key, None)
                parts = self.cluster.find(lane.milli)
                if parts is None:
                    raise AssertionError("an eviction was in vain")
                self._start(item, Run(item, parts, lane.milli))

    def _ripe(self, to: Item) -> float:
        """When somebody may next turn out to yield to the item."""
        soonest = self.now + LOOK
        if self._look <= soonest:
            return self._look
        ripe = NEVER
        for run in self.runs.values():
            if run.milli >= WHOLE:
                ripe = min(ripe, self.order.ripens(run.item, to, self.now))
                if ripe <= soonest:
                    return soonest
        return ripe

    def _offers(self) -> tuple[ByNode, ByNode]:
        """Who may be evicted for anybody, by node; and who of these is at a good moment. A share of a GPU is not worth
        an eviction."""
        offers, fresh = self.order.offers, self.order.fresh
        offered: ByNode = [{} for _ in self.by_node]
        good: ByNode = [{} for _ in self.by_node]
        for key, run in self.runs.items():
            if run.milli >= WHOLE and offers(run.item, self.now):
                run.cost = self.order.price(run.item, self._loss(run.item)[0] * run.item.gpus, self.now)
                ready = fresh(run.item, self.now)
                for part in run.parts:
                    offered[part[0]][key] = run
                    if ready:
                        good[part[0]][key] = run
        return offered, good
