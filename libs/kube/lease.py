"""Leadership by a coordination Lease: at most one holder acts, as long as each stops before its own time is up.

The holder counts from *before* it sent the renewal that succeeded and stands down `margin_s` before the duration ends;
the others count from when they *saw* the record change, on their own monotonic clock. Wall clocks of two hosts are
never compared. Every write carries the resourceVersion that was read, so two candidates cannot both succeed. `term`
grows with every change of holder and fences what an old leader still has in flight. It also fences the one case in
which a holder is told late: one that slept through the end of its time learns by one write whether anybody followed.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from libs.kube.objects import Lease, lease_decoder
from libs.kube.port import Answer, Kube

log = structlog.get_logger()

_encode = msgspec.json.encode


class LeaderLease:
    """Run `run()` as a task; wait on `won`, act while `is_leader`, stop when `lost` is set. Both events are for one
    period of leadership: `lost` is cleared when the lease is won again. `identity` must be unique per process life."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration_s: float = 6.0,
        renew_s: float = 2.0,
        margin_s: float = 1.0,
        rng: random.Random | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not renew_s + margin_s < duration_s:
            raise ValueError("a lease must be renewed well before it ends")
        self.identity = identity
        self.term = 0
        self.won = asyncio.Event()
        self.lost = asyncio.Event()
        self.lost.set()
        self._kube = kube
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace, self._name = namespace, name
        self._duration_s, self._renew_s, self._margin_s = duration_s, renew_s, margin_s
        self._rng = rng or random.Random()
        self._monotonic = monotonic
        self._good_until = 0.0
        self._seen: Lease | None = None
        #: (holder, renewTime, resourceVersion) last seen, and when it was first seen here.
        self._record: tuple[str, str, str] = ("", "", "")
        self._record_at = 0.0

    @property
    def is_leader(self) -> bool:
        """True only while this process may act. Checked against the clock at every call, so a process that was paused
        finds itself deposed before it does anything."""
        return self.won.is_set() and self._monotonic() < self._good_until

    @property
    def seen_holder(self) -> bool:
        """Whether the lease was read and somebody held it: a replica that stands by is in order."""
        return bool(self._record[0])

    async def run(self) -> None:
        """Acquire, renew, lose, and again, until cancelled; then give the lease back, if held."""
        try:
            while True:
                await self._step()
                await self._pause()
        finally:
            if self.won.is_set():
                self._stand_down("stopping")
                await asyncio.shield(self._give_back())

    async def _pause(self) -> None:
        if not self.won.is_set():
            await asyncio.sleep(self._renew_s * self._rng.uniform(0.4, 0.6))
            return
        left = self._good_until - self._monotonic()
        # A renewal that failed or stayed without answer is tried again soon: a few tries fit before the time is up.
        pause = self._renew_s if self._seen is not None else self._renew_s * self._rng.uniform(0.1, 0.2)
        await asyncio.sleep(max(0.0, min(pause, left)))
        if self._monotonic() >= self._good_until and self._seen is None:
            self._stand_down("not renewed in time")

    async def _step(self) -> None:
        """One try to acquire or renew. A holder's calls are cut off where its time ends.

        A holder that slept through the end of its time (paused, starved) has one try all the same: where the object is
        as it left it, nobody led in between, and its term goes on without listing everything anew. Until the answer it
        is no leader by `is_leader`, and whatever it sends carries a term that a successor's is above."""
        limit = self._renew_s
        if self.won.is_set():
            left = self._good_until - self._monotonic()
            limit = self._margin_s if left <= 0 else max(0.05, min(self._renew_s, left))
        try:
            async with asyncio.timeout(limit):
                await self._try(limit)
        except TimeoutError:
            self._seen = None
        if self.won.is_set() and self._monotonic() >= self._good_until:
            self._stand_down("not renewed in time")

    async def _try(self, limit: float) -> None:
        if self._seen is None:
            answer = await self._kube.call("GET", f"{self._collection}/{self._name}", timeout_s=limit)
            if answer.status == 404:
                await self._write(None, limit)
                return
            if not answer.ok:
                return
            self._saw(answer)
        seen = self._seen
        if seen is None:
            return
        if seen.spec.holder_identity == self.identity or self._expired(seen):
            await self._write(seen, limit)
        else:
            self._seen = None  # somebody else's and alive: read again next time
            if self.won.is_set():
                self._stand_down("held by another")

    def _expired(self, seen: Lease) -> bool:
        if not seen.spec.holder_identity:
            return True
        duration = float(seen.spec.lease_duration_seconds or self._duration_s)
        return self._monotonic() - self._record_at > duration

    def _saw(self, answer: Answer) -> None:
        try:
            seen = lease_decoder.decode(answer.body)
        except msgspec.MsgspecError:
            self._seen = None
            return
        spec = seen.spec
        record = (spec.holder_identity or "", spec.renew_time or "", seen.metadata.resource_version)
        if record != self._record:
            self._record, self._record_at = record, self._monotonic()
        self._seen = seen

    async def _write(self, seen: Lease | None, limit: float) -> None:
        began = self._monotonic()
        held = seen is not None and seen.spec.holder_identity == self.identity and self.won.is_set()
        before = (seen.spec.lease_transitions or 0) if seen else 0
        # A restart under the same identity is a new leader too: it knows nothing of what the old one had in flight.
        term = before if held else before + 1
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        acquired = seen.spec.acquire_time if held and seen else now
        answer = await self._kube.call(
            "PUT" if seen else "POST",
            f"{self._collection}/{self._name}" if seen else self._collection,
            self._body(seen, self.identity, term, now, acquired or now),
            timeout_s=limit,
        )
        if not answer.ok:
            # Lost a race, or unsure whether it was written: only reading tells.
            self._seen = None
            return
        self._saw(answer)
        self._good_until = began + self._duration_s - self._margin_s
        if not self.won.is_set() and self._monotonic() < self._good_until:
            self.term = term
            self.lost.clear()
            self.won.set()
            log.info("leadership won", lease=self._name, identity=self.identity, term=term)

    def _body(self, seen: Lease | None, holder: str, term: int, now: str, acquired: str) -> bytes:
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if seen:
            metadata["resourceVersion"] = seen.metadata.resource_version
            metadata["uid"] = seen.metadata.uid
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": math.ceil(self._duration_s),
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": term,
        }
        return _encode({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})

    def _stand_down(self, why: str) -> None:
        if self.won.is_set():
            log.warning("leadership lost", lease=self._name, identity=self.identity, term=self.term, why=why)
        self.won.clear()
        self.lost.set()
        self._good_until = 0.0

    async def _give_back(self) -> None:
        """Empty the holder, so that a standby need not wait for the expiry. Best effort, one second."""
        seen = self._seen
        if seen is None:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = self._body(seen, "", self.term, now, seen.spec.acquire_time or now)
        try:
            async with asyncio.timeout(1.0):
                await self._kube.call("PUT", f"{self._collection}/{self._name}", body, timeout_s=1.0)
        except TimeoutError:
            return
