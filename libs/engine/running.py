"""Running pods by node, by job and by what makes them again: whom room is made from, and how often it was.

Guarantees: what is leaving (terminating, or marked for somebody) is counted once, however often it is seen; an eviction
that is under way or just over counts against its workload until the history of its queue knows of it, and once then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.domain.occasions import chained, joins
from libs.domain.queues import QueueHistory, Served, ancestors
from libs.engine.api import RunningTask

#: A history as of this long after a pod was seen to go has it, whether it names the pod or not.
HISTORY_LAGS_S: Final = 10.0
#: Pods that a history named and that are remembered.
_TOLD: Final = 20_000

#: A pod that was unmarked and is seen running this long after was not evicted.
_DOUBTED_S: Final = 10.0

#: Room that has not come by then is not waited for.
COMES_S: Final = 60.0

#: Pods of a job that were bound together have all been seen by then.
SETTLED_S: Final = 2.0

#: Milli GPUs, milli CPU, MiB.
Room = list[int]


@dataclass(slots=True)
class _Going:
    """A pod that makes room: since when, when it was gone, and since when that is in doubt."""

    at: float
    ended: float | None = None
    doubted: float | None = None
    #: What it had by then: milli GPU seconds, seconds.
    gpu_milli_s: float = 0.0
    run_s: float = 0.0
    #: When it had started (0: unknown), its queue, and whether it went as one of a gang.
    started: float = 0.0
    queue: str = ""
    gang: bool = False


class RunningBook:
    """`marked` are pods that make room for somebody already, as decided here and not yet shown by the cluster. `clock`
    is the time of the last pass, seconds since the epoch."""

    def __init__(self) -> None:
        self.by_uid: dict[str, RunningTask] = {}
        self.by_node: dict[str, dict[str, RunningTask]] = {}
        self.by_job: dict[str, dict[str, RunningTask]] = {}
        self.by_workload: dict[str, set[str]] = {}
        #: How many pods each queue has.
        self.by_queue: dict[str, int] = {}
        #: Milli GPUs of all of them.
        self.gpu_milli = 0
        self.marked: set[str] = set()
        self.clock = 0.0
        #: By workload and uid.
        self._evicted: dict[str, dict[str, _Going]] = {}
        #: Pods whose evictions are in the history of their queue.
        self._told: dict[str, None] = {}
        self._leaving: dict[str, RunningTask] = {}
        self._leaving_of: dict[str, Room] = {}
        #: Pods that leave and whose room is promised to nobody, or to a job that waits for it: (since when, job).
        self._coming: dict[str, tuple[float, str]] = {}
        #: Pods seen since the last pass, and when others were first seen, as far as that may matter.
        self._fresh: set[str] = set()
        self._first_seen: dict[str, float] = {}
        self._floors: dict[str, int] = {}
        self._dirty: set[str] = set()

    # -- facts ------------------------------------------------------------------------------------------------------
    def seen(self, task: RunningTask) -> None:
        task = self._saved_together(task)
        old = self.by_uid.get(task.uid)
        if old is not None and _place(old) != _place(task):
            self._drop(old)
            old = None
        if old is None:
            self._fresh.add(task.uid)
            self.by_queue[task.queue] = self.by_queue.get(task.queue, 0) + 1
            self.gpu_milli += task.charge.gpu_milli
        elif old.charge is not task.charge:
            self.gpu_milli += task.charge.gpu_milli - old.charge.gpu_milli
        self.by_uid[task.uid] = task
        self.by_node.setdefault(task.node, {})[task.uid] = task
        if task.job:
            self.by_job.setdefault(task.job, {})[task.uid] = task
        self.by_workload.setdefault(workload(task), set()).add(task.uid)
        if task.marked and task.uid not in self._told:
            going = self._evicted.setdefault(workload(task), {}).setdefault(task.uid, _going(task, self.clock))
            going.doubted = None
        elif (known := self._evicted.get(workload(task))) is not None and (left := known.get(task.uid)) is not None:
            # Unmarked: it stays after all, or its beneficiary has its room and only the word of its end is late.
            left.doubted = self.clock if left.doubted is None else left.doubted
        self._recount(task.uid)
        self._dirty.add(task.node)

    def _saved_together(self, task: RunningTask) -> RunningTask:
        """A gang saves its work together: what one of its pods says of that, all of them say."""
        members = self.by_job.get(task.job) if task.gang_min > 1 and task.job else None
        if not members:
            return task
        said = next(iter(members.values())).saved
        if said > task.saved:
            return msgspec.structs.replace(task, saved=said)
        if said < task.saved:
            for uid, member in list(members.items()):
                told = msgspec.structs.replace(member, saved=task.saved)
                self.by_uid[uid] = self.by_node[member.node][uid] = members[uid] = told
                self._recount(uid)
        return task

    def gone(self, uid: str) -> None:
        task = self.by_uid.pop(uid, None)
        self.marked.discard(uid)
        if task is None:
            return
        self._drop(task)
        known = self._evicted.get(workload(task))
        if known is not None and uid in known:
            known[uid].ended = self.clock
        self._recount(uid)

    def _drop(self, task: RunningTask) -> None:
        for index, key in ((self.by_node, task.node), (self.by_job, task.job)):
            pods = index.get(key)
            if pods is not None:
                pods.pop(task.uid, None)
                if not pods:
                    del index[key]
        self.gpu_milli -= task.charge.gpu_milli
        self.by_queue[task.queue] -= 1
        if not self.by_queue[task.queue]:
            del self.by_queue[task.queue]
        alike = self.by_workload.get(workload(task))
        if alike is not None:
            alike.discard(task.uid)
            if not alike:
                del self.by_workload[workload(task)]
        self._dirty.add(task.node)

    def pass_begins(self, now: float) -> None:
        """`now` as of `Engine.decide`. What was seen before the first pass is everything that there was."""
        if not self.clock:
            self._fresh.clear()
        self.clock = now
        first_seen = self._first_seen
        for uid in [uid for uid, at in first_seen.items() if now - at > SETTLED_S or uid not in self.by_uid]:
            del first_seen[uid]
        first_seen.update(dict.fromkeys(self._fresh, now))
        self._fresh.clear()

    def settles_at(self, job: str) -> float:
        """Until when other pods of the job may be on nodes already and not seen yet: a while after the last that came.
        0: they have all been seen."""
        seen = self._first_seen
        if not seen:
            return 0.0
        return max((seen[uid] + SETTLED_S for uid in self.by_job.get(job, ()) if uid in seen), default=0.0)

    def mark(self, uid: str) -> None:
        self.marked.add(uid)
        task = self.by_uid.get(uid)
        if task is not None:
            self._recount(uid)
            self._dirty.add(task.node)

    def unmark(self, uids: set[str]) -> None:
        for uid in uids:
            self.marked.discard(uid)
            task = self.by_uid.get(uid)
            if task is not None:
                self._recount(uid)
                self._dirty.add(task.node)

    # -- who leaves -------------------------------------------------------------------------------------------------
    def stays(self, task: RunningTask) -> bool:
        """Neither leaving by itself nor made to leave."""
        return not task.terminating and not task.marked and task.uid not in self.marked

    def leaving(self, path: str) -> tuple[int, int, int]:
        """What pods of the queue and of those below it still hold and are about to give back."""
        room = self._leaving_of.get(path)
        return (room[0], room[1], room[2]) if room is not None else (0, 0, 0)

    def coming(self, job: str) -> list[RunningTask]:
        """Pods that leave and whose room this job may wait for."""
        found: list[RunningTask] = []
        for uid, (since, promised) in list(self._coming.items()):
            task = self.by_uid.get(uid)
            if task is None or self.stays(task) or self.clock - since > COMES_S:
                del self._coming[uid]
            elif not promised or promised == job:
                found.append(task)
        return found

    def comes_free(self, uid: str) -> None:
        """The pod leaves, and nobody needs its room."""
        self._coming.setdefault(uid, (self.clock, ""))

    def promise(self, uid: str, job: str) -> None:
        """The job waits for this room."""
        self._coming[uid] = (self._coming[uid][0], job)

    def who_leaves(self, path: str) -> list[RunningTask]:
        """Pods of the queue and of those below it that are about to give back what they hold."""
        return [task for task in self._leaving.values() if path in ancestors(task.queue)]

    def _recount(self, uid: str) -> None:
        task = self.by_uid.get(uid)
        before = self._leaving.get(uid)
        after = task if task is not None and not self.stays(task) else None
        if before is after:
            return
        if before is not None:
            self._shift(before, -1)
            del self._leaving[uid]
        if after is not None:
            self._shift(after, 1)
            self._leaving[uid] = after

    def _shift(self, task: RunningTask, sign: int) -> None:
        charge = task.charge
        for path in ancestors(task.queue):
            room = self._leaving_of.setdefault(path, [0, 0, 0])
            room[0] += sign * charge.gpu_milli
            room[1] += sign * charge.cpu
            room[2] += sign * charge.mem
            if not any(room):
                del self._leaving_of[path]

    def floors(self) -> dict[str, int]:
        """Node -> lowest priority among its evictable pods; nodes without one are absent."""
        for name in self._dirty:
            priorities = [t.priority for t in self.by_node.get(name, {}).values() if t.ours and self.stays(t)]
            if priorities:
                self._floors[name] = min(priorities)
            else:
                self._floors.pop(name, None)
        self._dirty.clear()
        return self._floors

    # -- who was evicted ----------------------------------------------------------------------------------------------
    def told(self, uids: Iterable[str]) -> None:
        """The histories have the evictions of these pods."""
        self._told.update(dict.fromkeys(uids))
        while len(self._told) > _TOLD:
            del self._told[next(iter(self._told))]

    def in_doubt(self, task: RunningTask) -> bool:
        """Whether an eviction counts as decided here that the history may have too, without saying so."""
        return any(uid not in self._told for uid in self._evicted.get(workload(task), ()))

    def evictions(self, task: RunningTask, history: QueueHistory | None, window_s: int) -> list[float]:
        """When pods of the task's workload were evicted within the window, oldest first, those on their way included.
        Of a gang those count that began an occasion (`libs.domain.occasions`)."""
        key = workload(task)
        gang = task.gang_min > 1
        times = _recorded(key, history, gang)
        news = self._news(key, history)
        if gang:
            _open(times, news)
        else:
            times += [at for at, _ in news]
        return sorted(at for at in times if self.clock - at < window_s)

    def _news(self, key: str, history: QueueHistory | None) -> list[tuple[float, float]]:
        """Of pods of the workload that go, or went, without the history having it: when, and when they had started."""
        found: list[tuple[float, float]] = []
        known = self._evicted.get(key)
        if known:
            told = history.at - HISTORY_LAGS_S if history is not None else 0.0
            for uid, going in list(known.items()):
                if uid in self._told or self._is_old(uid, going, told):
                    del known[uid]
                else:
                    found.append((going.at, going.started))
        if self.marked:
            found += [
                (self.clock, self.by_uid[uid].started)
                for uid in self.by_workload.get(key, ())
                if uid in self.marked and uid not in self._told and uid not in (known or ())
            ]
        return found

    def untold(self, histories: Mapping[str, QueueHistory]) -> int:
        """Evictions, those to come included, that the histories do not have: of gangs occasions, of others pods."""
        queues: dict[str, tuple[str, bool]] = {}
        for uid in self.marked:
            if (task := self.by_uid.get(uid)) is not None:
                queues[workload(task)] = task.queue, task.gang_min > 1
        for key, known in self._evicted.items():
            for going in known.values():
                queues[key] = going.queue, going.gang
        count = 0
        for key, (queue, gang) in queues.items():
            history = histories.get(queue)
            news = self._news(key, history)
            count += _open(_recorded(key, history, gang), news) if gang else len(news)
        return count

    def served(self, key: str, history: QueueHistory | None, now: float) -> Served | None:
        """What a workload has had until `now`, in attempts that were ended by evictions and in what runs; None where
        nothing is known of it. `run_s` and `at` are of the former."""
        before = history.served.get(key) if history is not None else None
        uids = self.by_workload.get(key)
        known = self._evicted.get(key)
        if before is None and not uids and not known:
            return None
        milli_s = run_s = at = 0.0
        if before is not None:
            milli_s, run_s, at = before.gpu_milli_s, before.run_s, before.at
        told = history.at - HISTORY_LAGS_S if history is not None else 0.0
        counted: set[str] = set()
        longest = 0.0
        for uid, going in known.items() if known else ():
            if uid not in self._told and not self._is_old(uid, going, told):
                counted.add(uid)
                milli_s += going.gpu_milli_s
                longest = max(longest, going.run_s)
                at = max(at, going.at)
        for uid in uids or ():
            task = self.by_uid[uid]
            if uid not in counted and uid not in self._told and task.started > 0:
                milli_s += task.charge.gpu_milli * max(0.0, now - task.started)
        return Served(round(milli_s), round(run_s + longest), round(at))

    def _is_old(self, uid: str, going: _Going, told: float) -> bool:
        """Whether it counts no more: the history has it, or it was not evicted in the end."""
        if going.ended is not None:
            return going.ended < told
        task = self.by_uid.get(uid)
        return (
            going.doubted is not None
            and self.clock - going.doubted > _DOUBTED_S
            and task is not None
            and self.stays(task)
        )

    def forget_old(self, most_s: float) -> None:
        """Evictions that no window reaches back to are forgotten."""
        for key in list(self._evicted):
            known = self._evicted[key]
            for uid, going in list(known.items()):
                if going.ended is not None and self.clock - going.ended > most_s:
                    del known[uid]
            if not known:
                del self._evicted[key]


def _going(task: RunningTask, now: float) -> _Going:
    run_s = max(0.0, now - task.started) if task.started > 0 and now else 0.0
    return _Going(
        now, gpu_milli_s=task.charge.gpu_milli * run_s, run_s=run_s, started=task.started, queue=task.queue,
        gang=task.gang_min > 1,
    )  # fmt: skip


def _place(task: RunningTask) -> tuple[str, str, str, str]:
    return task.node, task.job, task.queue, workload(task)


def workload(task: RunningTask) -> str:
    """What goes on when the pod is evicted and made again."""
    return task.workload or task.job or task.uid


def _recorded(key: str, history: QueueHistory | None, gang: bool) -> list[float]:
    """When evictions of the workload were, by its queue's history: of a gang occasions, of others pods."""
    times = history.evictions.get(key, ()) if history is not None else ()
    pods = history.pods.get(key, ()) if history is not None else ()
    if gang:
        return [*times] if len(pods) == len(times) else chained(times)
    if len(pods) == len(times):
        return [float(at) for at, count in zip(times, pods, strict=True) for _ in range(count)]
    return [*times]


def _open(begun: list[float], news: Iterable[tuple[float, float]]) -> int:
    """Add the occasions that these pods (when each went, when it had started) open; how many."""
    before = len(begun)
    for at, started in sorted(set(news)):
        if not any(joins(at, started, one) for one in begun):
            begun.append(at)
    return len(begun) - before
