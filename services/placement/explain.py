"""Where who waits stands in line, and why; worked out when somebody is told, at most every `LOOK_S` for all at once.

To look at thousands takes tens of milliseconds, so it is done in steps, between which others are served (`look`). Who
came since the last look is told the place that it would have had then.

Jobs of other replicas count as these tell of them (`lines`), some seconds later. What is told stays the same words
while it stays nearly true, so that a line that moves does not cost a write per job and step.
"""

from __future__ import annotations

import math
import time as _time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from libs.contracts.events import QueueLine
from libs.domain.line import Turn
from libs.domain.queues import Quota, ancestors
from libs.domain.resources import WHOLE
from libs.engine.api import Start
from libs.engine.fair import NOTHING, Amounts, Line, Place, asked, everything, models_of, plus
from libs.engine.fair.little import LEVELS
from libs.engine.fair.shares import parent_of
from services.placement.jobs import Job
from services.placement.lines import QUEUES, Ask, Elsewhere, Heard, told_of
from services.placement.proofs import Proofs
from services.placement.settings import PlacementSettings
from services.placement.state import State

LOOK_S: Final = 5.0
#: And for each job that waits: a look at 5,000 takes about 50 ms, so it is 200 times rarer.
_LOOK_PER_JOB_S: Final = 0.002
#: Who asks without having looked gets what is older than it should be, so many seconds; then it is looked at in one go.
_LATE_S: Final = 10.0
#: Jobs of one step.
_STEP: Final = 64
#: The line over all queues is followed so far.
_OVERALL: Final = 256
_BEHIND: Final = 3
#: Starts are worked out for so many in front of each queue, and anew no sooner than this.
_FRONT: Final = 8
_START_S: Final = 30.0
#: Between two of them, whichever queues they are of: one takes some milliseconds.
_BETWEEN_S: Final = 0.5


@dataclass(slots=True)
class _Picture:
    until: float = float("-inf")
    #: Those who wait in each queue, in order.
    lines: dict[str, list[Place]] = field(default_factory=dict)
    overall: dict[str, int] = field(default_factory=dict)
    #: By partition and queue, what others are told: who waits, in order; where there are others.
    parts: dict[int, dict[str, list[Place]]] = field(default_factory=dict)
    asked_for: dict[tuple[int, str], Amounts] = field(default_factory=dict)
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    demand: dict[str, Amounts] = field(default_factory=dict)
    #: Jobs, of any replica, for which room is kept.
    kept: tuple[str, ...] = ()
    #: The longest that a running task has left, where that is known of all; seconds: of those with GPUs, of all.
    longest: float | None = None
    longest_of_all: float | None = None
    #: The same where all of them declared it.
    declared: bool = False
    declared_of_all: bool = False


@dataclass(frozen=True, slots=True)
class _Starts:
    """When the first of a queue are expected to start, by key. `yielding`: of the first, see `Reserved`."""

    at: float
    by_key: dict[str, Start]
    yielding: bool = False


class Explainer:
    def __init__(self, state: State, settings: PlacementSettings) -> None:
        self._state = state
        self._settings = settings
        self._picture = _Picture()
        self._starts: dict[str, _Starts] = {}
        self._told: dict[str, Turn] = {}
        self._next_start = float("-inf")
        self._proofs = Proofs(state, settings)
        #: What other replicas tell of their lines, and whether there are any to be told of ours.
        self.heard = Heard()
        self.shared = False

    def turn_of(self, job: Job, now: float, wall: float) -> Turn | None:
        """Of a job that waits; None where it does not. `now` is monotonic, `wall` seconds since the epoch."""
        key = job.head.key
        if key not in self._state.waiting or not job.waiting:
            self._told.pop(key, None)
            return None
        if now >= self._picture.until + _LATE_S:
            for _ in self.look(now, wall):
                pass
        picture, place = self._picture, self._state.pending.place(job)
        line = picture.lines.get(job.head.queue, [])
        queue, elsewhere = job.head.queue, picture.elsewhere
        before = bisect_left(line, place)
        there = before < len(line) and line[before] == place
        position = before + elsewhere.before(queue, place) + 1
        behind = sorted(line[max(0, before - _BEHIND) : before] + elsewhere.just_before(queue, place, _BEHIND))
        start = self._start(job, position, now, wall)
        bound, bound_basis = self._bound(job, position, now, wall)
        expects, expects_basis = self._expects(job, position, wall)
        evicting = job.evicting
        pods = self._state.view.pods
        turn = Turn(
            queue=queue,
            position=_rounded(position),
            waiting=_rounded(len(line) + (not there) + elsewhere.waiting.get(queue, 0)),
            overall=_rounded(picture.overall.get(key, 0)),
            behind=tuple(one[3] for one in behind[: -_BEHIND - 1 : -1]),
            why=_why(place, behind[-1]) if behind else "",
            start=start.at,
            start_low=start.low,
            start_high=start.high,
            basis=start.basis,
            bound_s=bound,
            bound_basis=bound_basis,
            kept_on=tuple(sorted(job.gathering.nodes)) if job.gathering is not None else (),
            kept_for=tuple(other for other in picture.kept if other != key),
            evicts=tuple(sorted(f"{pods[u].namespace}/{pods[u].name}" for u in evicting.victims if u in pods))
            if evicting is not None
            else (),
            rule=evicting.rule if evicting is not None else "",
            expects_s=expects,
            expects_basis=expects_basis,
        )
        told = self._told.get(key)
        if told is not None and _alike(told, turn):
            return told
        self._told[key] = turn
        return turn

    # -- the picture --------------------------------------------------------------------------------------------------
    def stale(self, now: float) -> bool:
        """Whether it is time to look."""
        return now >= self._picture.until

    def look(self, now: float, wall: float) -> Iterator[None]:
        """See who stands where, step by step; what was seen before is told meanwhile."""
        state = self._state
        pending, shares = state.pending, state.view.engine.shares
        waiting: dict[str, list[tuple[Place, Job]]] = {}
        demand: dict[str, Amounts] = {}
        asked_for: dict[tuple[int, str], Amounts] = {}
        for number, job in enumerate(list(pending.jobs.values()), 1):
            if not number % _STEP:
                yield
            if job.head.key not in state.waiting or not job.waiting:
                continue
            waiting.setdefault(job.head.queue, []).append((pending.place(job), job))
            total = everything(job.waiting)
            for one in ancestors(job.head.queue):
                demand[one] = plus(demand.get(one, NOTHING), total)
            part = job.partition, job.head.queue
            asked_for[part] = plus(asked_for.get(part, NOTHING), total)
        picture = _Picture(now + max(LOOK_S, _LOOK_PER_JOB_S * len(state.waiting)), demand=demand, asked_for=asked_for)
        picture.elsewhere = self.heard.elsewhere(state.active)
        for queue, more in picture.elsewhere.demand.items():
            demand[queue] = plus(demand.get(queue, NOTHING), more)
        line: Line[str] = Line(shares)
        for queue, heads in picture.elsewhere.heads.items():
            for place, (ask, models) in heads:
                line.put(place[3], queue, place, ask, models)
        for queue, jobs in waiting.items():
            yield
            jobs.sort(key=lambda entry: entry[0])
            picture.lines[queue] = [place for place, _ in jobs]
            if self.shared:
                for place, job in jobs:
                    picture.parts.setdefault(job.partition, {}).setdefault(queue, []).append(place)
            for place, job in jobs[:_OVERALL]:
                held = pending.held(job) if job.head.gang_min > 1 else 0
                ask, models = asked(job.head, job.waiting, held), models_of(job.head, job.waiting, held)
                line.put(job.head.key, queue, place, ask, models)
        for number in range(1, _OVERALL + 1):
            if not number % _STEP:
                yield
            entry = line.next()
            if entry is None:
                break
            picture.overall[entry.key] = number
            line.charge(entry.path, entry.ask, line.likely(entry.ask, entry.models))
        self._age(demand, wall)
        picture.kept = tuple(sorted(state.view.engine.kept()))
        picture.longest = state.view.engine.longest_left(wall)
        picture.longest_of_all = state.view.engine.longest_left(wall, gpus=False)
        picture.declared = state.view.engine.longest_left(wall, declared=True) is not None
        picture.declared_of_all = state.view.engine.longest_left(wall, gpus=False, declared=True) is not None
        yield
        self._told = {key: turn for key, turn in self._told.items() if key in state.waiting}
        self._starts = {queue: start for queue, start in self._starts.items() if queue in picture.lines}
        self._proofs.keep(picture.lines)
        self._picture = picture

    def _age(self, demand: Mapping[str, Amounts], wall: float) -> None:
        """Who has waited too long follows from how much is asked for in all."""
        state = self._state
        pending = state.pending
        asked_for = sum(amounts[0] for path, amounts in demand.items() if not parent_of(path)) / WHOLE
        for key in state.view.engine.line_seen(asked_for, pending.jobs.__contains__, wall):
            job = pending.jobs.get(key)
            if job is not None:
                state.waiting.aged(job)
                pending.moved(job)

    def lines_of(self, partition: int) -> tuple[QueueLine, ...]:
        """Who waits in a partition of ours, for the other replicas; as last looked at."""
        pending, picture = self._state.pending, self._picture

        def ask_of(place: Place) -> Ask:
            job = pending.jobs.get(place[3])
            if job is None:
                return NOTHING, ()
            held = pending.held(job) if job.head.gang_min > 1 else 0
            return asked(job.head, job.waiting, held), models_of(job.head, job.waiting, held)

        longest = sorted(picture.parts.get(partition, {}).items(), key=lambda part: (-len(part[1]), part[0]))
        return tuple(
            told_of(queue, places, ask_of, picture.asked_for[partition, queue]) for queue, places in longest[:QUEUES]
        )

    # -- parts --------------------------------------------------------------------------------------------------------
    def _start(self, job: Job, position: int, now: float, wall: float) -> Start:
        if job.gathering is not None:
            return job.gathering.start
        if position > _FRONT or job.evicting is not None or job.earmarks:
            return Start()  # who has room coming needs no forecast, which costs a look at every node per task
        queue, key = job.head.queue, job.head.key
        found = self._starts.get(queue)
        if found is not None and now - found.at < _START_S and key in found.by_key:
            return found.by_key[key]
        if now >= self._next_start and (found is None or now - found.at >= _BETWEEN_S * _FRONT):
            self._next_start = now + _BETWEEN_S
            found = self._starts[queue] = self._in_turn(queue, now, wall)
        return found.by_key.get(key, Start()) if found is not None else Start()

    def _in_turn(self, queue: str, now: float, wall: float) -> _Starts:
        """Each of the first of a queue beside those before it, up to one whom another replica has."""
        state, picture = self._state, self._picture
        line: list[Job] = []
        for number, place in enumerate(picture.lines.get(queue, ())[:_FRONT]):
            job = state.pending.jobs.get(place[3])
            if job is None or picture.elsewhere.before(queue, place) or number != len(line):
                break
            line.append(job)
        asking = [job for job in line if job.gathering is None and job.evicting is None and not job.earmarks]
        found = state.view.engine.in_turn([state.pending.to_engine(job, may_evict=False) for job in asking], wall)
        by_key = {
            job.head.key: reserved.start if reserved is not None else Start()
            for job, reserved in zip(asking, found, strict=False)
        }
        return _Starts(now, by_key, yielding=bool(found and found[0] is not None and found[0].yielding))

    def _expects(self, job: Job, position: int, wall: float) -> tuple[int, str]:
        """How long it is expected to wait at the longest by the run times of what runs, which nothing enforces: each up
        to it in its queue has one turn of room kept for it, from when it has waited too long where those in the way
        yield only then."""
        settings, picture, shares = self._settings, self._picture, self._state.view.engine.shares
        gpus = everything(job.waiting)[0] > 0
        longest = picture.longest if gpus else picture.longest_of_all
        if settings.placement_reserve_s <= 0 or longest is None:
            return 0, ""
        if any(shares.named(parent_of(one)) for one in ancestors(job.head.queue) if shares.compared(parent_of(one))):
            return 0, ""
        turn = settings.placement_reserve_after_s + max(settings.placement_reserve_s, 1.25 * longest + 60.0)
        expects, basis = position * turn, "declared run times of what runs"
        if not (picture.declared if gpus else picture.declared_of_all):
            basis = "run times of what runs, some as predicted from earlier runs"
            starts = self._starts.get(job.head.queue)
            if settings.placement_little_service and (starts is None or starts.yielding):
                expects += max(0.0, settings.placement_overdue_s - (wall - job.head.created))
                basis += ", and room that is kept once it has waited too long"
        return math.ceil(expects), basis

    def _bound(self, job: Job, position: int, now: float, wall: float) -> tuple[int, str]:
        """The most that it waits, while its queue and all above ask for no more than their parts and nobody comes who
        stands before it: each job before it in its queue has such a turn as well, one after the other at the worst.
        0 and the reason where nothing is certain. Run times that were declared or predicted make no bound: nothing
        enforces them, and what starts before room is kept may run for longer."""
        shares, settings, queue = self._state.view.engine.shares, self._settings, job.head.queue
        picture = self._picture
        for one in ancestors(queue):
            if not shares.compared(parent_of(one)):
                continue  # all of what is above is its part, and only its own line stands before it
            wanted = plus(shares.use(one), picture.demand.get(one, NOTHING))
            if any(w > p + 1e-6 for w, p in zip(wanted, shares.part(one)[:3], strict=True)):
                return 0, "its queue asks for more than its part of the cluster"
        why = "nothing enforces when what runs ends"
        specs = [spec for one in ancestors(queue) if (spec := shares.spec(one)) is not None]
        if all(spec.deserved == Quota() for spec in specs):
            return 0, why
        reason = self._proofs.reason(job, self._picture.lines.get(queue, []), position, now, wall)
        if reason:
            return 0, f"{why}, and {reason}"
        turn = settings.placement_evicting_s
        basis = f"as long as others have as much to give back of what it deserves, their pods ending within {turn:g} s"
        return math.ceil(position * turn + self._gathers(queue, position, now)), basis

    def _gathers(self, queue: str, position: int, now: float) -> float:
        """For how long room is kept for one of the first jobs of a queue: meanwhile it makes nobody leave."""
        jobs = (self._state.pending.jobs.get(place[3]) for place in self._picture.lines[queue][:position])
        return max((job.gathering.until - now for job in jobs if job is not None and job.gathering), default=0.0)


# -- words ------------------------------------------------------------------------------------------------------------


def sentence(turn: Turn) -> str:
    """For the pod's condition, `drystone why` and the status topic."""
    parts = [f"{_nth(turn.position)} of {turn.waiting} waiting in queue {turn.queue}"]
    if turn.overall:
        parts[0] += f" ({_nth(turn.overall)} of all)"
    if turn.behind:
        parts[0] += f", behind {turn.behind[0]}" + (f" ({turn.why})" if turn.why else "")
    if turn.kept_on:
        parts.append(
            "room is kept for it on " + ", ".join(turn.kept_on[:4]) + ("" if len(turn.kept_on) < 5 else ", ...")
        )
    if turn.kept_for:
        parts.append("room is kept for " + ", ".join(turn.kept_for[:2]) + ("" if len(turn.kept_for) < 3 else ", ..."))
    if turn.evicts:
        names = ", ".join(turn.evicts[:4]) + ("" if len(turn.evicts) < 5 else ", ...")
        parts.append(f"{names} leave{'s' if len(turn.evicts) == 1 else ''} for it (rule: {turn.rule})")
    if turn.start:
        when = _clock(turn.start)
        if turn.start_high > turn.start_low:
            when += f", between {_clock(turn.start_low)} and {_clock(turn.start_high)}"
        parts.append(f"expected to start at {when} ({turn.basis})")
    elif turn.basis:
        parts.append(f"expected start: {turn.basis}")
    if turn.bound_s:
        parts.append(f"waits at most {turn.bound_s} s more while its queue stays within its part ({turn.bound_basis})")
    elif turn.bound_basis:
        parts.append(f"no bound on its waiting: {turn.bound_basis}")
    if turn.expects_s and not turn.bound_s:
        parts.append(f"expected to wait no longer than about {turn.expects_s} s more ({turn.expects_basis})")
    return "; ".join(parts)


def _why(mine: Place, theirs: Place) -> str:
    if theirs[0] < mine[0]:
        return "has waited past the limit"
    if theirs[1] // LEVELS < mine[1] // LEVELS:
        return "higher priority"
    return "has had less" if theirs[1] < mine[1] else "older"


def _clock(at: float) -> str:
    return _time.strftime("%Y-%m-%dT%H:%MZ", _time.gmtime(at))


def _nth(number: int) -> str:
    if number > 10:
        return f"about {number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"


def _rounded(number: int) -> int:
    """Exact up to ten, then to two digits at most, so that words stay true while a long line moves."""
    if number <= 10:
        return number
    step: int = 10 ** (len(str(number)) - 1) // 2
    return max(11, round(number / step) * step)


def _alike(told: Turn, turn: Turn) -> bool:
    """Whether what was told is still as good as true."""
    return (
        told.queue == turn.queue
        and told.position == turn.position
        and told.waiting == turn.waiting
        and told.behind[:1] == turn.behind[:1]
        and told.basis == turn.basis
        and told.bound_basis == turn.bound_basis
        and told.kept_on == turn.kept_on
        and told.kept_for == turn.kept_for
        and told.evicts == turn.evicts
        and _near(told.start, turn.start, 60.0)
        and _near(told.bound_s, turn.bound_s, max(60.0, told.bound_s / 4))
        and told.expects_basis == turn.expects_basis
        and _near(told.expects_s, turn.expects_s, max(60.0, told.expects_s / 4))
    )


def _near(left: float, right: float, within: float) -> bool:
    return abs(left - right) <= within and bool(left) == bool(right)
