"""What queues used over time, and whom of them was evicted: pure bookkeeping of the leader.

Use is integrated exactly, at every change of what a queue holds (`account`). A queue has what is below it too. A leader
begins from what the one before kept; what ran meanwhile counts from then on, or from its start: a restart leaves no gap
but for pods that began and ended within it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from libs.contracts.events import HistoryFact
from libs.domain.queues import Eviction, Queue, QueueHistory, Quota, Served, ancestors, half_lives
from libs.domain.resources import WHOLE, Charge
from libs.domain.saving import unsaved
from libs.engine.fair.budget import Budget
from services.watcher.account import Account
from services.watcher.occasions import Evicted

#: Workloads of one queue whose evictions are remembered, the most recent.
MOST_WORKLOADS: Final = 256
#: For whom a workload was evicted is remembered of its last so many evictions; pods that went for the same within so
#: many seconds are one.
MOST_REASONS: Final = 4
_TOGETHER_S: Final = 60
#: What a workload had before it was evicted is forgotten so long after.
SERVED_S: Final = 90 * 86_400
#: Evicted pods that are remembered by uid, and jobs that came, so that each counts once.
_COUNTED: Final = 20_000
#: Evictions of one queue that are told by uid: the last so many, of the last so many seconds.
_MOST_RECENT: Final = 512
_RECENT_S: Final = 60.0
_NO_QUEUE: Final = Queue("")


@dataclass(frozen=True, slots=True)
class _Held:
    path: str
    amounts: tuple[int, int, int]
    started: float
    models: tuple[tuple[str, int], ...] = ()


class Tally:
    """`now` gives seconds since the epoch. `half_life_s`: of queues that say none, and of what evictions cost. `budget`
    is what evictions for little service, and for the overdue, may cost; it is kept here."""

    def __init__(self, now: Callable[[], float], half_life_s: int, term: int = 0, budget: Budget | None = None) -> None:
        self._now = now
        self.half_life_s = half_life_s
        self._half_life_of: Callable[[str], int] = lambda _: half_life_s
        self._term = term
        self._budget = budget or Budget()
        #: Milli GPUs that are held now, and until when their work is in the budget.
        self._milli = 0
        self._worked_until = 0.0
        self._held: dict[str, _Held] = {}
        #: What is held now by path, in the order of an account; absent: nothing.
        self._rates: dict[str, list[int]] = {}
        self._models: dict[str, dict[str, int]] = {}
        self._accounts: dict[str, Account] = {}
        self._evictions: dict[str, dict[str, Evicted]] = {}
        self._reasons: dict[str, dict[str, list[Eviction]]] = {}
        self._counted: dict[str, None] = {}
        #: (when counted, uid), by path.
        self._recent: dict[str, deque[tuple[float, str]]] = {}
        self._moved: set[str] = set()
        self._kept_at = float("-inf")
        #: Evicted pods that the first lists showed: whether they are news is known when it is known what was kept.
        self._early: list[Callable[[], bool]] = []
        #: What workloads had before they were evicted, by path.
        self._served: dict[str, dict[str, Served]] = {}
        #: Jobs that were counted as they came, and those that the first lists showed: (path, job, workload, created).
        self._came: dict[str, None] = {}
        self._came_early: list[tuple[str, str, str, float]] = []
        self.begun = False
        #: Counts evictions that were news.
        self.news = 0
        #: What the topic has, by path.
        self.told: dict[str, HistoryFact] = {}

    # -- beginning ----------------------------------------------------------------------------------------------------

    def begin(self, kept: Mapping[str, QueueHistory]) -> None:
        """Everything that holds room was listed once; `kept` is what the leader before wrote down, by path."""
        now = self._now()
        for path, history in kept.items():
            account = self._accounts[path] = Account.recalled(history, min(history.at, now), self.half_life_s)
            account.forget_by(self._half_life_of(path))
            account.advance((0, 0, 0), {}, now)
            self._kept_at = max(self._kept_at, history.at)
            for workload, times in history.evictions.items():
                evicted = Evicted.recalled(times, history.pods.get(workload, ()))
                self._evictions.setdefault(path, {})[workload] = evicted
            for workload, reasons in history.reasons.items():
                self._reasons.setdefault(path, {})[workload] = list(reasons[-MOST_REASONS:])
            if history.served:
                self._served[path] = dict(history.served)
        self._budget.recall(kept.values(), now)
        counted, self._worked_until = self._budget.at, now
        for held in self._held.values():
            worked = now - max(held.started, counted) if held.started > 0 else 0.0
            self._budget.worked(held.amounts[0] / WHOLE * max(0.0, worked), now)
            for path in ancestors(held.path):
                since = kept[path].at if path in kept else 0.0
                begun = max(held.started, since) if held.started > 0 else now
                account = self._accounts.setdefault(path, self._new(path, now))
                account.ran(held.amounts, held.models, now - begun)
        self._moved.update(self._accounts, self._evictions)
        self.begun = True
        for one in self._early:
            one()
        self._early.clear()
        for came in self._came_early:
            if came[3] > self._kept_at:
                self.came(*came)
            else:
                self._came[came[1]] = None
        self._came_early.clear()

    # -- what happens -------------------------------------------------------------------------------------------------

    def queues_are(self, queues: Mapping[str, Queue]) -> None:
        """What they say of half-lives counts from now on."""
        self._half_life_of = half_lives(queues, self.half_life_s)
        for path, account in self._accounts.items():
            if account.half_life_s != self._half_life_of(path):
                self._account(path).forget_by(self._half_life_of(path))
                self._moved.add(path)

    def held(
        self, uid: str, path: str, charge: Charge, started: float, models: Mapping[int, str] | None = None
    ) -> None:
        """The pod holds this from now on; `started` is when it was bound, 0 where nobody knows. `models` are those of
        its node's devices by index, as far as they are known."""
        by_model: dict[str, int] = {}
        for grant in charge.gpus if models else ():
            model = models.get(grant.index, "") if models else ""
            if model:
                by_model[model] = by_model.get(model, 0) + grant.milli
        held = _Held(path, (charge.gpu_milli, charge.cpu, charge.mem), started, tuple(by_model.items()))
        old = self._held.get(uid)
        if old is not None:
            if (old.path, old.amounts, old.models) == (held.path, held.amounts, held.models):
                return
            self.left(uid)
        self._held[uid] = held
        self._shift(held, 1)

    def left(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            self._shift(held, -1)

    def came(self, path: str, job: str, workload: str, created: float) -> None:
        """A pod of the job was seen for the first time. A job counts once, and not again when it was evicted."""
        if not self.begun:
            self._came_early.append((path, job, workload, created))
            return
        if job in self._came or workload in self._served.get(path, ()):
            return
        self._came[job] = None
        while len(self._came) > _COUNTED:
            del self._came[next(iter(self._came))]
        self._account(path).jobs += 1.0
        self._budget.came(self._work())
        self._moved.add(path)

    def evicted(
        self,
        uid: str,
        path: str,
        workload: str,
        at: float,
        reason: Eviction | None = None,
        checkpoint_s: int = 0,
        saved: float = 0.0,
        gang: bool = False,
        created: float = 0.0,
    ) -> bool:
        """A pod was made to go for others; whether that is news. `at` is in whole seconds, as the API server has it.
        `reason` None: nobody knows for whom. Pods of a `gang` that go on one occasion are one eviction of it."""
        if not self.begun:
            again = (uid, path, workload, at, reason, checkpoint_s, saved, gang, created)
            self._early.append(partial(self.evicted, *again))
            return False
        if uid in self._counted:
            return False
        self._counted[uid] = None
        while len(self._counted) > _COUNTED:
            del self._counted[next(iter(self._counted))]
        held = self._held.get(uid)
        started = held.started if held is not None and held.started > 0 else created
        known = self._evictions.get(path, {}).get(workload)
        if at < self._kept_at - 2 or (at <= self._kept_at and known is not None and known.has(at, started, gang)):
            return False  # the leader before counted it
        known = self._evictions.setdefault(path, {}).setdefault(workload, Evicted([], []))
        self._spend(uid, path, workload, at, known.add(at, started, gang), checkpoint_s, saved)
        if reason is not None:
            _remember(self._reasons.setdefault(path, {}).setdefault(workload, []), reason)
        self._recent.setdefault(path, deque(maxlen=_MOST_RECENT)).append((self._now(), uid))
        self._moved.add(path)
        self.news += 1
        return True

    def _spend(
        self, uid: str, path: str, workload: str, at: float, first: bool, checkpoint_s: int, saved: float
    ) -> None:
        """What the pod had by then, and what of it is lost. `first`: of its occasion."""
        account, held = self._account(path), self._held.get(uid)
        started = held.started if held is not None and held.started > 0 else at
        run = max(0.0, at - started)
        milli = held.amounts[0] if held is not None else 0
        served = self._served.setdefault(path, {})
        had = served.get(workload, Served(0, 0, 0))
        # Of a gang its pods had as long as each of them.
        run_s = had.run_s + round(run) * first
        served[workload] = Served(had.gpu_milli_s + round(milli * run), run_s, max(had.at, int(at)))
        lost = milli * unsaved(at, started, saved, checkpoint_s)
        account.evictions += first
        account.lost += lost
        self._budget.evicted(lost / WHOLE, self._work(), first)

    def renamed(self, old: str, new: str) -> None:
        """A queue moved within the tree: what it used is its own and goes along."""
        now = self._now()
        account = self._accounts.pop(old, None)
        if account is not None:
            account.advance(self._rates.get(old, (0, 0, 0)), self._models.get(old, {}), now)
            other = self._account(new)
            other.take_over(account)
        self._served.setdefault(new, {}).update(self._served.pop(old, {}))
        for workload, evicted in self._evictions.pop(old, {}).items():
            self._evictions.setdefault(new, {}).setdefault(workload, Evicted([], [])).merge(evicted)
        for workload, reasons in self._reasons.pop(old, {}).items():
            known = self._reasons.setdefault(new, {}).setdefault(workload, [])
            known[:] = sorted([*known, *reasons], key=lambda one: one.at)[-MOST_REASONS:]
        if (recent := self._recent.pop(old, None)) is not None:
            self._recent[new] = recent
        self._moved |= {old, new}

    # -- what is told and kept ----------------------------------------------------------------------------------------

    def tell(self, queues: Mapping[str, Queue]) -> tuple[list[HistoryFact], list[str]]:
        """(what is new since it was last told, paths of which there is nothing to tell any more). Where nothing is held
        the past only fades, which whoever was told works out himself."""
        now = self._now()
        facts, gone = [], []
        for path in sorted(self._accounts.keys() | self._evictions.keys() | self.told.keys()):
            pruned = self._prune(path, now - queues.get(path, _NO_QUEUE).evictions_window_s)
            if not (pruned or path in self._moved or path in self._rates or path not in self.told):
                continue
            history = self.history(path)
            if path not in queues and path not in self._rates and not history.evictions:
                # No object, nothing held: pods may name any queue, and none of those names is kept for ever.
                self._accounts.pop(path, None)
                if self.told.pop(path, None) is not None:
                    gone.append(path)
                continue
            fact = self.told[path] = HistoryFact(history, self._term)
            facts.append(fact)
        self._moved.clear()
        return facts, gone

    def history(self, path: str) -> QueueHistory:
        account = self._account(path)
        gpu, cpu, mem = account.rounded()
        evictions = sorted(self._evictions.get(path, {}).items())
        return QueueHistory(
            path=path,
            at=round(account.at, 3),
            half_life_s=account.half_life_s,
            gpu_milli_s=gpu,
            cpu_milli_s=cpu,
            mem_mib_s=mem,
            evictions={workload: tuple(evicted.times) for workload, evicted in evictions},
            pods={workload: tuple(evicted.pods) for workload, evicted in evictions if evicted.counted},
            recent=self._counted_last(path),
            reasons={workload: tuple(known) for workload, known in sorted(self._reasons.get(path, {}).items())},
            served=dict(sorted(self._served.get(path, {}).items())),
            spending=account.spending(),
            models={model: milli for model, used in sorted(account.models.items()) if (milli := round(used)) > 0},
            left=self._budget.told(self._work()),
        )

    def _counted_last(self, path: str) -> tuple[str, ...]:
        recent = self._recent.get(path)
        if recent is None:
            return ()
        now = self._now()
        while recent and recent[0][0] < now - _RECENT_S:
            recent.popleft()
        if not recent:
            del self._recent[path]
        return tuple(uid for _, uid in recent)

    def used(self, path: str) -> Quota:
        """What the queue and those below it hold now."""
        gpu, cpu, mem = self._rates.get(path, (0, 0, 0))
        return Quota(gpu, cpu, mem, {m: n for m, n in self._models.get(path, {}).items() if n})

    def busy(self, path: str) -> bool:
        """Whether the queue, or one below it, holds anything now."""
        return path in self._rates

    # -- inside -------------------------------------------------------------------------------------------------------

    def _work(self) -> float:
        """What was worked until now is in the budget; now."""
        now = self._now()
        if now > self._worked_until:
            if self.begun:
                self._budget.worked(self._milli / WHOLE * (now - self._worked_until), now)
            self._worked_until = now
        return now

    def _shift(self, held: _Held, sign: int) -> None:
        self._work()
        self._milli += sign * held.amounts[0]
        for path in ancestors(held.path):
            if self.begun:
                self._account(path)
            rate = self._rates.setdefault(path, [0, 0, 0])
            for n, amount in enumerate(held.amounts):
                rate[n] += sign * amount
            for model, amount in held.models:
                models = self._models.setdefault(path, {})
                models[model] = models.get(model, 0) + sign * amount
            if not any(rate):
                del self._rates[path]
                self._models.pop(path, None)
            self._moved.add(path)

    def _new(self, path: str, now: float) -> Account:
        return Account(now, self._half_life_of(path), self.half_life_s)

    def _account(self, path: str) -> Account:
        """As of now."""
        now = self._now()
        account = self._accounts.get(path)
        if account is None:
            account = self._accounts[path] = self._new(path, now)
        account.advance(self._rates.get(path, (0, 0, 0)), self._models.get(path, {}), now)
        return account

    def _prune(self, path: str, before: float) -> bool:
        """Forget evictions older than the window, and the least recent workloads beyond the most; whether any was."""
        forgotten = self._forget_served(path)
        known = self._evictions.get(path)
        if known is None:
            return forgotten
        count, gone = len(known), 0
        for workload, evicted in list(known.items()):
            gone += evicted.forget(before)
            if not evicted.times:
                del known[workload]
        if len(known) > MOST_WORKLOADS:
            for workload in sorted(known, key=lambda one: known[one].times[-1])[: len(known) - MOST_WORKLOADS]:
                del known[workload]
        reasons = self._reasons.get(path, {})
        for workload, said in list(reasons.items()):
            said[:] = [one for one in said if one.at >= before]
            if not said or workload not in known:
                del reasons[workload]
        if not reasons:
            self._reasons.pop(path, None)
        changed = forgotten or gone > 0 or count != len(known)
        if not known:
            del self._evictions[path]
        return changed

    def _forget_served(self, path: str) -> bool:
        served = self._served.get(path)
        if not served:
            return False
        before = self._now() - SERVED_S
        last = sorted(served, key=lambda one: served[one].at)
        gone = [n for n, one in enumerate(last) if n < len(last) - MOST_WORKLOADS or served[one].at < before]
        for n in gone:
            del served[last[n]]
        if not served:
            del self._served[path]
        return bool(gone)


def _remember(known: list[Eviction], new: Eviction) -> None:
    for n, one in enumerate(known):
        same = (one.job, one.beneficiary, one.rule) == (new.job, new.beneficiary, new.rule)
        if same and abs(one.at - new.at) <= _TOGETHER_S:
            known[n] = msgspec.structs.replace(one, at=max(one.at, new.at), pods=one.pods + new.pods)
            break
    else:
        known.append(new)
    known.sort(key=lambda one: one.at)
    del known[:-MOST_REASONS]
