"""One eviction plan, from the check that it is still right to its outcome.

Guarantees: only the very pods that were decided on are touched (uid preconditions); where disruption budgets apply, all
or none of the guarded victims go, and they go before the others, so that a refusal leaves the others running; what is
finally refused is unmarked, so that it can be decided on again. Pods are told before they go (see `notice`). Every step
may be repeated: a preemptor that takes over finds the victims that left already and goes on with the rest.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from libs.contracts.events import EvictionOutcome
from libs.domain.plans import EvictionPlan, Victim
from libs.kube import writes
from libs.kube.outcomes import retry_after, why
from libs.kube.pods import PodView, parse_pod
from libs.kube.port import Answer, Kube
from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.runtime.insist import Insist
from libs.store.port import Ledger, LedgerUnavailable, Refusal, StaleGeneration
from services.preemptor import decide, metrics
from services.preemptor.budgets import Budgets
from services.preemptor.decide import Step, Target
from services.preemptor.notice import Notices
from services.preemptor.settings import PreemptorSettings

log = structlog.get_logger()

T = TypeVar("T")


def _all_refused(targets: Sequence[Target], refused: dict[str, str], left: Sequence[str]) -> dict[str, str]:
    """With the others, who stay because one of them does."""
    others = {t.victim.uid: "another victim of the plan was refused" for t in targets}
    return {uid: why for uid, why in {**others, **refused}.items() if uid not in left}


class Evictor:
    def __init__(
        self,
        kube: Kube,
        ledger: Ledger,
        budgets: Budgets,
        settings: PreemptorSettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._kube = kube
        self._ledger = ledger
        self._budgets = budgets
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._insist = Insist("ledger", (LedgerUnavailable,), clock, rng)
        self._slots = asyncio.Semaphore(settings.calls_at_once)
        self._notices = Notices(kube, self._call, self._read, settings, clock)

    async def carry_out(self, plan: EvictionPlan) -> EvictionOutcome:
        left: list[str] = []
        refusals = await self._ledgered(lambda: self._ledger.begin_evict(plan))
        if refusals is None:
            return self._void(plan, Refusal.GENERATION.value)
        if "" in refusals:
            return self._void(plan, refusals[""].value)
        left += [uid for uid, refusal in refusals.items() if refusal is Refusal.VICTIM_GONE]
        lost = {uid: r.value for uid, r in refusals.items() if r is not Refusal.VICTIM_GONE}
        here = [v for v in plan.victims if v.uid not in refusals]
        if lost:
            # Without these the room may not suffice; the others would go in vain.
            refused = {**lost, **{v.uid: "another victim of the plan is not to be had" for v in here}}
            return await self._end(plan, left, refused)
        targets, unread = await self._look(plan, here, left)
        if unread:
            return await self._end(plan, left, {v.uid: unread for v in here if v.uid not in left}, targets)
        return await self._evict(plan, targets, left)

    async def _evict(self, plan: EvictionPlan, targets: Sequence[Target], left: list[str]) -> EvictionOutcome:
        ordered = decide.most_constrained_first(targets)
        guarded = [t for t in ordered if t.guarded]
        free = [t for t in ordered if not t.guarded]
        refused = await self._rehearse(guarded) if guarded else {}
        if refused:
            return await self._end(plan, left, _all_refused(ordered, refused, left), targets)
        until = {t.victim.uid: self._notices.until(plan, t) for t in ordered}
        await asyncio.gather(*(self._notices.announce(plan, t, until[t.victim.uid]) for t in ordered))
        told = [msgspec.structs.replace(t, announced=True) for t in ordered]
        if max(until.values(), default=0.0) > self._clock.wall():
            refused = await self._after_notice(plan, ordered, until, left)
            guarded = [t for t in guarded if t.victim.uid not in left]
            free = [t for t in free if t.victim.uid not in left]
            if not refused and guarded:
                refused = await self._rehearse(guarded)
        if not refused:
            refused = await self._all(guarded, left)
        if not refused:
            return await self._end(plan, left, await self._all(free, left), told)
        return await self._end(plan, left, _all_refused(ordered, refused, left), told)

    async def _after_notice(
        self, plan: EvictionPlan, targets: Sequence[Target], until: dict[str, float], left: list[str]
    ) -> dict[str, str]:
        """All have been told; who left by itself is noted in `left`. Why the others stay after all, by uid: nobody goes
        for somebody who is not there any more."""
        stay = await asyncio.gather(*(self._notices.passed(t, until[t.victim.uid]) for t in targets))
        left += [t.victim.uid for t, stays in zip(targets, stay, strict=True) if not stays]
        refusals = await self._ledgered(lambda: self._ledger.begin_evict(plan))
        if refusals is None:
            refusals = {"": Refusal.GENERATION}
        lost = {uid: r for uid, r in refusals.items() if r is not Refusal.VICTIM_GONE}
        if not lost:
            return {}
        why_all = f"after notice: {next(iter(lost.values())).value}"
        return {t.victim.uid: why_all for t in targets if t.victim.uid not in left}

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _look(self, plan: EvictionPlan, victims: Sequence[Victim], left: list[str]) -> tuple[list[Target], str]:
        """Those that are still there; who left by itself is noted in `left`. Fails as a whole, with a reason."""
        seen = await asyncio.gather(*(self._meet(plan, v) for v in victims))
        targets: list[Target] = []
        unread = ""
        for victim, (pod, announced) in zip(victims, seen, strict=True):
            if isinstance(pod, str):
                unread = unread or pod
            elif pod is None or decide.left_already(victim, pod):
                left.append(victim.uid)
            else:
                budgets = self._budgets.of(victim.namespace)
                targets.append(decide.aim(victim, pod, budgets, announced=announced))
        return targets, unread

    async def _meet(self, plan: EvictionPlan, victim: Victim) -> tuple[PodView | str | None, bool]:
        """The pod as `_read` tells, and whether it was told that it goes. Whom no budget guards, as far as placement
        knows, is told and read by one call."""
        if not victim.guarded:
            answer = await self._notices.greet(plan, victim)
            match decide.after_evict(answer):
                case Step.GONE:
                    return None, False
                case Step.ACCEPTED:
                    try:
                        return parse_pod(answer.body), True
                    except msgspec.MsgspecError as error:
                        return f"the pod cannot be read: {error}", True
                case _:
                    pass
        return await self._read(victim), False

    async def _read(self, victim: Victim) -> PodView | str | None:
        """The pod, None where there is none, or why that cannot be learned."""
        until = self._clock.monotonic() + self._settings.give_up_s
        backoff = self._backoff()
        while True:
            answer = await self._call(
                "get",
                lambda: writes.get_pod(
                    self._kube, victim.namespace, victim.name, timeout_s=self._settings.write_timeout_s
                ),
            )
            if answer.status == 404:
                return None
            if answer.ok:
                try:
                    return parse_pod(answer.body)
                except msgspec.MsgspecError as error:
                    return f"the pod cannot be read: {error}"
            if answer.status in (400, 403) or not await self._again(backoff, until, answer):
                return why(answer)

    # -- evicting ------------------------------------------------------------------------------------------------------

    async def _rehearse(self, guarded: Sequence[Target]) -> dict[str, str]:
        """Whether all guarded victims may go, waiting a little for budgets that do not allow it yet. Why not, by
        uid."""
        lasting = decide.lasting_refusals(guarded)
        if lasting:
            return lasting
        now = self._clock.monotonic()
        until = now + self._settings.budget_patience_s
        give_up = now + self._settings.give_up_s
        backoff = self._backoff()
        while True:
            current = [
                msgspec.structs.replace(t, budgets=tuple(self._budgets.current(b) for b in t.budgets)) for t in guarded
            ]
            short = decide.short_budgets(current)
            passing: dict[str, str] = {}
            limit = until
            if not short:
                answers = await asyncio.gather(*(self._send_eviction(t, dry_run=True) for t in guarded))
                for target, answer in zip(guarded, answers, strict=True):
                    uid = target.victim.uid
                    match decide.after_evict(answer):
                        case Step.REFUSED:
                            return {uid: why(answer)}
                        case Step.BUDGET:
                            short[uid] = why(answer)
                        case Step.AGAIN:
                            passing[uid] = why(answer)
                        case _:
                            pass
                if not short and not passing:
                    return {}
                if not short:
                    limit = give_up
            if self._clock.monotonic() >= limit:
                return {**short, **passing}
            metrics.RETRIES.labels(code="budget" if short else "rehearsal").inc()
            await self._clock.sleep(backoff.next())

    async def _all(self, targets: Sequence[Target], left: list[str]) -> dict[str, str]:
        """Send all of them off at once. Who went is noted in `left`; why others did not is returned, by uid."""
        reasons = await asyncio.gather(*map(self._one, targets))
        refused: dict[str, str] = {}
        for target, reason in zip(targets, reasons, strict=True):
            if reason:
                refused[target.victim.uid] = reason
            else:
                left.append(target.victim.uid)
        return refused

    async def _one(self, target: Target) -> str:
        """Evict one victim, trying against passing faults. Empty: it went; else why not."""
        victim = target.victim
        now = self._clock.monotonic()
        until, patience = now + self._settings.give_up_s, now + self._settings.budget_patience_s
        backoff = self._backoff()
        while True:
            if target.guarded:
                answer = await self._send_eviction(target, dry_run=False)
            else:
                answer = await self._call(
                    "delete",
                    lambda: writes.delete_pod(
                        self._kube,
                        victim.namespace,
                        victim.name,
                        victim.uid,
                        timeout_s=self._settings.write_timeout_s,
                    ),
                )
            match decide.after_evict(answer):
                case Step.ACCEPTED | Step.GONE:
                    return ""
                case Step.REFUSED:
                    return why(answer)
                case Step.BUDGET:
                    if not await self._again(backoff, patience, answer):
                        return why(answer)
                case Step.AGAIN:
                    if not await self._again(backoff, until, answer):
                        return await self._last_look(victim, answer)

    async def _last_look(self, victim: Victim, answer: Answer) -> str:
        """Time is up; the last try may have worked all the same."""
        if not answer.unsure:
            return why(answer)
        pod = await self._read(victim)
        if isinstance(pod, str):
            return why(answer)
        return "" if pod is None or decide.left_already(victim, pod) else why(answer)

    async def _send_eviction(self, target: Target, *, dry_run: bool) -> Answer:
        victim = target.victim
        return await self._call(
            "dry run" if dry_run else "evict",
            lambda: writes.evict(
                self._kube,
                victim.namespace,
                victim.name,
                victim.uid,
                dry_run=dry_run,
                timeout_s=self._settings.write_timeout_s,
            ),
        )

    # -- ending --------------------------------------------------------------------------------------------------------

    async def _end(
        self, plan: EvictionPlan, left: Sequence[str], refused: dict[str, str], announced: Sequence[Target] = ()
    ) -> EvictionOutcome:
        if refused:
            await self._notices.withdraw([t for t in announced if t.announced and t.victim.uid in refused])
            await self._ledgered(lambda: self._ledger.unmark(plan.id, list(refused), plan.generation))
            log.info("eviction refused", plan=plan.id, job=plan.job, refused=refused, cause=plan.cause)
        metrics.EVICTIONS.labels(rule=plan.rule, outcome="evicted").inc(len(left))
        metrics.EVICTIONS.labels(rule=plan.rule, outcome="refused").inc(len(refused))
        metrics.PLANS.labels(outcome="refused" if refused else "evicted").inc()
        return EvictionOutcome(
            plan.id, plan.job, plan.partition, evicted=tuple(left), refused=dict(refused), cause=plan.cause,
            traceparent=plan.traceparent,
        )  # fmt: skip

    def _void(self, plan: EvictionPlan, reason: str) -> EvictionOutcome:
        metrics.PLANS.labels(outcome="void").inc()
        log.info("eviction void", plan=plan.id, job=plan.job, why=reason, cause=plan.cause)
        return EvictionOutcome(
            plan.id, plan.job, plan.partition, void=reason, cause=plan.cause, traceparent=plan.traceparent
        )

    # -- small things ------------------------------------------------------------------------------------------------

    async def _call(self, name: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        async with self._slots:
            started = self._clock.monotonic()
            answer = await call()
        metrics.CALLS.labels(call=name, code=str(answer.status)).inc()
        metrics.CALL_SECONDS.observe(self._clock.monotonic() - started)
        return answer

    async def _again(self, backoff: Backoff, until: float, answer: Answer) -> bool:
        """Pause before one more try; False where the time is up."""
        if self._clock.monotonic() >= until:
            return False
        metrics.RETRIES.labels(code=str(answer.status)).inc()
        asked = min(retry_after(answer) or 0.0, self._settings.backoff_cap_s)
        pause = backoff.next()
        await self._clock.sleep(max(pause, asked * self._rng.uniform(1.0, 1.25)))
        return True

    def _backoff(self) -> Backoff:
        return Backoff(self._settings.backoff_base_s, self._settings.backoff_cap_s, self._rng)

    async def _ledgered(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """Ledger calls are idempotent: an outage is waited out. None where the data set changed: nothing of the plan is
        left in it."""
        try:
            return await self._insist.on(call)
        except StaleGeneration:
            return None
