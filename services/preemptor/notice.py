"""Notice before the signal: a pod that asked for it, or whose queue grants it, is told before it is evicted, so that it
can save its work.

What is told stands on the pod: when it goes, and for which plan. So it is told once, a preemptor that takes over waits
no longer than the first would have, and a container sees it in a downward API volume. The pod may end, or say by an
annotation that it has saved what it needs: then it goes at once. A notice that came to nothing is taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from libs.domain import keys
from libs.domain.notices import notice
from libs.domain.plans import EvictionPlan, Victim
from libs.kube import writes
from libs.kube.pods import PodView
from libs.kube.port import Answer, Kube
from libs.kube.trainingjobs import when
from libs.runtime.clock import Clock
from services.preemptor import decide
from services.preemptor.decide import Target
from services.preemptor.settings import PreemptorSettings

#: A call by its name, counted and held within what may be in flight.
Call = Callable[[str, Callable[[], Awaitable[Answer]]], Awaitable[Answer]]
Read = Callable[[Victim], Awaitable[PodView | str | None]]


def notice_s(annotations: Mapping[str, str], granted_s: int, most_s: float) -> float:
    """The longer of what the pod asks for and what its queue grants, capped."""
    said = annotations.get(keys.EVICT_NOTICE, "").strip()
    asked = int(said) if said.isascii() and said.isdecimal() and len(said) < 9 else 0
    return min(float(max(asked, granted_s)), most_s)


def told_until(annotations: Mapping[str, str], plan: str) -> float | None:
    """When the pod goes as it was told for this very plan (seconds since the epoch); None: it was not told."""
    if annotations.get(keys.EVICT_PLAN) != plan:
        return None
    try:
        return datetime.fromisoformat(annotations.get(keys.EVICT_AT, "")).timestamp()
    except ValueError:
        return None


class Notices:
    def __init__(self, kube: Kube, call: Call, read: Read, settings: PreemptorSettings, clock: Clock) -> None:
        self._kube = kube
        self._call = call
        self._read = read
        self._settings = settings
        self._clock = clock

    def until(self, plan: EvictionPlan, target: Target) -> float:
        """When the victim may go, by the clock on the wall: now where no notice is due."""
        now = self._clock.wall()
        pause = notice_s(target.annotations, target.victim.notice_s, self._settings.notice_most_s)
        if pause <= 0:
            return now
        told = told_until(target.annotations, plan.id)
        return min(told, now + pause) if told is not None else now + pause

    async def announce(self, plan: EvictionPlan, target: Target, until: float) -> None:
        """Say on the pod why it goes, and when. Best effort; the eviction does not wait for a second try."""
        if told_until(target.annotations, plan.id) is not None:
            return
        if until > self._clock.wall():
            await self._tell(plan, target.victim, {keys.EVICT_AT: when(until), keys.EVICT_PLAN: plan.id})
        elif not target.announced:
            await self._tell(plan, target.victim, {})

    async def greet(self, plan: EvictionPlan, victim: Victim) -> Answer:
        """Say why it goes to a pod that was not read yet: the answer has the pod."""
        return await self._tell(plan, victim, {})

    async def _tell(self, plan: EvictionPlan, victim: Victim, annotations: Mapping[str, str | None]) -> Answer:
        """As kube-scheduler does: job controllers tell a disruption from a failure by it."""
        return await self._patch(victim, "True", notice(plan.job, plan.rule), annotations)

    async def passed(self, target: Target, until: float) -> bool:
        """Wait for the notice to pass. False: the victim left meanwhile."""
        victim = target.victim
        while (left := until - self._clock.wall()) > 0:
            await self._clock.sleep(min(left, self._settings.notice_look_s))
            pod = await self._read(victim)
            if isinstance(pod, str):
                continue  # the eviction itself will tell
            if pod is None or decide.left_already(victim, pod):
                return False
            if pod.annotations.get(keys.EVICT_ACK):
                return True
        return True

    async def withdraw(self, victims: list[Target]) -> None:
        """These stay: what was said on them no longer holds, and must not make a later failure look like a
        disruption. Best effort."""
        annotations = {keys.EVICT_AT: None, keys.EVICT_PLAN: None, keys.EVICT_ACK: None}
        await asyncio.gather(*(self._patch(t.victim, "False", "drystone: not evicted", annotations) for t in victims))

    async def _patch(self, victim: Victim, status: str, message: str, annotations: Mapping[str, str | None]) -> Answer:
        return await self._call(
            "condition",
            lambda: writes.patch_pod_condition(
                self._kube,
                victim.namespace,
                victim.name,
                victim.uid,
                type="DisruptionTarget",
                status=status,
                reason="PreemptionByScheduler",
                message=message,
                annotations=annotations,
                now=self._clock.wall(),
                timeout_s=self._settings.write_timeout_s,
            ),
        )
