"""How many unfinished jobs a tenant has, for the tenants that have a limit.

The count is a list of the tenant's objects, kept for a moment and added to by what this replica accepts. So the limit
may be passed by what other replicas accept within that moment, and by no more. Far below the limit nobody takes turns,
and the count is kept for longer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import msgspec

from libs.contracts.tenants import TenantPolicy
from libs.kube import trainingjobs
from libs.kube.nesting import decoded
from libs.kube.objects import list_decoder
from libs.kube.outcomes import Outcome, classify
from libs.kube.port import Kube
from libs.runtime.clock import Clock

TENANT_LABEL: Final = "drystone.dev/tenant"
_PAGE: Final = "500"
_FRESH_S: Final = 2.0
#: With room for so many more there is no need for turns: fewer are on their way at once, however many replicas.
_PLENTY: Final = 5000
_FRESH_WITH_PLENTY_S: Final = 10.0
#: At the limit room is looked for more often: a job that ended should not have to wait for the next look.
_FRESH_WHEN_FULL_S: Final = 0.2


@dataclass(slots=True)
class _Count:
    jobs: int = 0
    at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class PendingJobs:
    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._counts: dict[str, _Count] = {}

    def turn(self, tenant: TenantPolicy) -> asyncio.Lock:
        """Held from the question for room to the answer to the creation: two that ask at once would both be let in."""
        return self._counts.setdefault(tenant.name, _Count()).lock

    def plenty(self, tenant: TenantPolicy) -> bool:
        """Whether there is room for as many as may be on their way at once."""
        count, most = self._counts.get(tenant.name), tenant.max_pending_jobs
        if most is None:
            return True
        if count is None or self._clock.monotonic() - count.at > _FRESH_WITH_PLENTY_S:
            return False
        return most - count.jobs >= _PLENTY

    async def room(self, tenant: TenantPolicy) -> bool:
        """Whether one more may be taken. A list that cannot be had counts as room: it is a limit, not a safeguard."""
        most = tenant.max_pending_jobs
        if most is None:
            return True
        count = self._counts.setdefault(tenant.name, _Count())
        age = self._clock.monotonic() - count.at
        if age > (_FRESH_S if count.jobs < most else _FRESH_WHEN_FULL_S):
            listed = await self._list(tenant, most)
            if listed is None:
                return True
            count.jobs, count.at = listed, self._clock.monotonic()
        return count.jobs < most

    def added(self, tenant: TenantPolicy) -> None:
        self._counts.setdefault(tenant.name, _Count()).jobs += 1

    async def _list(self, tenant: TenantPolicy, most: int) -> int | None:
        """Unfinished ones, counted no further than `most`."""
        found = 0
        for namespace in tenant.namespaces:
            token = ""
            while True:
                params = {"labelSelector": f"{TENANT_LABEL}={tenant.name}", "limit": _PAGE}
                if token:
                    params["continue"] = token
                answer = await self._kube.call("GET", trainingjobs.path(namespace), params=params)
                if classify(answer) is Outcome.GONE and not token:
                    break
                if not answer.ok:
                    return None
                try:
                    page = decoded(list_decoder, answer.body)
                    views = [trainingjobs.parse(bytes(item)) for item in page.items or ()]
                except msgspec.MsgspecError:
                    return None
                found += sum(not view.ended and not view.deleting for view in views)
                token = page.metadata.continue_ or ""
                if found >= most:
                    return found
                if not token:
                    break
        return found
