"""What queues are owed, proven for their lines: that the first so many find what others have to give back now.

A proof places every task, so one for a long line costs what placing it does. So it is made for few at first, for four
times as many as long as those were proven and somebody further back asks, and after one the next waits in proportion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from libs.engine.fair import Place
from services.placement.jobs import Job
from services.placement.settings import PlacementSettings
from services.placement.state import State

#: A proof is made anew after so long, and counts for twice that.
_FRESH_S: Final = 30.0
#: Between two of them, whichever queues they are of: one takes some milliseconds.
_BETWEEN_S: Final = 0.5
#: What a queue is owed is proven for so many tasks of its first jobs, for the fewest at first, for more as long as
#: those are proven. Where the first 16 are not, for fewer.
_PROOFS: Final = (16, 64, 256, 1024)
_FEWER: Final = (4, 1)
#: After a proof the next one waits so long for each task, since one takes a quarter of a millisecond.
_PROOF_PER_TASK_S: Final = 0.02
#: What could not be proven for as many is not tried for as many again so soon.
_VAIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Proof:
    """That these jobs of a queue fit into what others have to give back; `why` is said of those behind them."""

    at: float
    jobs: frozenset[str]
    why: str
    #: Whether it is to be tried for more.
    grows: bool = False


class Proofs:
    def __init__(self, state: State, settings: PlacementSettings) -> None:
        self._state = state
        self._settings = settings
        self._owed: dict[str, _Proof] = {}
        #: By queue: for how many tasks it is tried next, as a place in _PROOFS; until when for no more, and why.
        self._reach: dict[str, int] = {}
        self._vain: dict[str, tuple[float, str]] = {}
        self._next_proof = float("-inf")

    def keep(self, queues: Collection[str]) -> None:
        """Others have nobody waiting."""
        for known in (self._owed, self._reach, self._vain):
            for queue in [queue for queue in known if queue not in queues]:
                del known[queue]

    def reason(self, job: Job, line: Sequence[Place], position: int, now: float, wall: float) -> str:
        """Why it is not certain that others give back enough for the job and all before it; empty where it is. `line`:
        who waits in its queue here, `position` its place among all. `now` is monotonic, `wall` seconds since the
        epoch."""
        queue, before = job.head.queue, line[:position]
        if len(before) < position or before[-1][3] != job.head.key:
            return "jobs of its queue that another replica has stand before it"
        proof = self._owed.get(queue)
        stale = proof is None or now - proof.at >= _FRESH_S
        if now >= self._next_proof and (stale or (proof is not None and proof.grows and position > len(proof.jobs))):
            proof = self._owed[queue] = self._proven(queue, line, now, wall)
        if proof is None or now - proof.at >= 2 * _FRESH_S:
            return "what others have to give back is not worked out yet"
        if proof.jobs.issuperset(place[3] for place in before):
            return ""
        return proof.why or f"what others have to give back is worked out for the first {len(proof.jobs)} so far"

    def _proven(self, queue: str, places: Sequence[Place], now: float, wall: float) -> _Proof:
        """For as many as were proven last, or for more of them if that was to be tried; then for fewer."""
        reach, why, cost = self._reach.get(queue, 0), "", 0
        for most in (*_PROOFS[reach::-1], *_FEWER):
            line, whole = self._first(places, most)
            cost += sum(len(job.waiting) for job in line)
            self._next_proof = now + max(_BETWEEN_S, cost * _PROOF_PER_TASK_S)
            reason = self._reason(line, wall)
            if not reason:
                until, said = self._vain.get(queue, (now, ""))
                grows = not whole and reach + 1 < len(_PROOFS) and most == _PROOFS[reach] and now >= until
                if grows:
                    self._reach[queue] = reach + 1
                elif not whole and most == _PROOFS[-1]:
                    said = f"what others give back is worked out for the first {len(line)} only"
                why = why or ("" if grows else said)
                return _Proof(now, frozenset(job.head.key for job in line), why, grows)
            why = reason
            if most in _PROOFS and reach:
                reach = self._reach[queue] = reach - 1
                self._vain[queue] = now + _VAIN_S, reason
        return _Proof(now, frozenset(), why)

    def _first(self, places: Sequence[Place], most: int) -> tuple[list[Job], bool]:
        """(the first jobs of a queue's line, of so many tasks in all, one job at least; whether that is the whole)."""
        found: list[Job] = []
        tasks = 0
        for place in places:
            if len(found) >= most:
                break
            job = self._state.pending.jobs.get(place[3])
            if job is None:
                continue
            tasks += len(job.waiting)
            if found and tasks > max(most, _PROOFS[0]):
                break
            found.append(job)
        return found, len(found) == len(places)

    def _reason(self, line: list[Job], wall: float) -> str:
        """Why it is not certain that all of these find what others have to give back; empty where it is."""
        state = self._state
        # For whom others leave already, or have left, has its room; what gathers may never be enough.
        waiting = [job for job in line if job.evicting is None and (job.gathering or not job.earmarks)]
        if any(job.evictions >= self._settings.placement_evictions for job in waiting):
            return "others were made to leave for it often enough, or for one before it"
        asking = [state.pending.to_engine(job, may_evict=True) for job in waiting]
        return state.view.engine.owed(asking, wall) if asking else ""
