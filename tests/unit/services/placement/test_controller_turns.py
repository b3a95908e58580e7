"""Job objects when jobs end all the time: every one is looked at, and those that are to go do go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from libs.domain.jobs import partition_of
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.kube import trainingjobs, writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.port import Answer
from libs.runtime.clock import SystemClock
from services.placement.controller import WIDTH, Controller
from services.placement.jobs import Pending
from services.placement.state import State
from services.placement.view import View

PARTITIONS = 12
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}


class Silent:
    """Tells nobody anything."""

    waiting_object: object = None

    def say(self, *_: object) -> None: ...

    def write(self, *_: object) -> None: ...

    def forget(self, *_: object) -> None: ...


class Busy(EmbeddedCluster):
    """While somebody reads a job, a pod of another one ends."""

    def __init__(self, state: State, latency_s: float = 0.0) -> None:
        super().__init__()
        self.state = state
        self.latency_s = latency_s
        self.endless = 0
        self.reading = self.most = 0
        self.fails = ""

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 5.0,
    ) -> Answer:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await asyncio.sleep(self.latency_s)
        self.reading -= 1
        if self.fails and path.endswith(self.fails):
            return Answer(500, b"", unsure=True)
        if method == "GET" and "/trainingjobs/other" in path:
            self.endless += 1
            self.state.look.add(f"job/default/other-{self.endless}")
            self.state.look_event.set()
        return await super().call(method, path, body, params=params, content_type=content_type, timeout_s=timeout_s)

    def job(self, name: str, phase: str = "Succeeded") -> str:
        """A job of one task whose object may go at once; its key."""
        spec = {"roles": [{"name": "worker", "replicas": 1, "template": TEMPLATE}], "ttlSecondsAfterFinished": 0}
        assert self.call_now(
            "POST", trainingjobs.path("default"), trainingjobs.manifest("default", name, spec, {}, {})
        ).ok
        ended = {"status": {"phase": phase, "completionTime": "2026-01-01T00:00:00Z"}}
        path = trainingjobs.path("default", name) + "/status"
        assert self.call_now("PATCH", path, json.dumps(ended).encode(), content_type=writes.MERGE).ok
        return f"job/default/{name}"

    def there(self, name: str) -> bool:
        return self.call_now("GET", trainingjobs.path("default", name)).ok


@asynccontextmanager
async def controlled(state: State, kube: Busy) -> AsyncIterator[None]:
    controller = Controller(state, kube, Silent(), SystemClock(), PARTITIONS)  # type: ignore[arg-type]
    running = asyncio.create_task(controller.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def everything() -> State:
    view = View(lambda: PlacementEngine(EngineConfig(mix_slots=PARTITIONS)), gpu_max_age_s=60.0, tenants={},
                mix_slots=PARTITIONS)  # fmt: skip
    state = State(view=view, pending=Pending())
    state.active.update(range(PARTITIONS))
    return state


async def until_gone(kube: Busy, *names: str) -> None:
    async with asyncio.timeout(30):
        while any(kube.there(name) for name in names):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_object_goes_although_pods_of_other_jobs_end_all_the_time() -> None:
    state = everything()
    kube = Busy(state)
    state.look |= {kube.job("done"), "job/default/other-0"}
    async with controlled(state, kube):
        await until_gone(kube, "done")
    assert kube.endless


async def test_a_slow_api_server_is_asked_about_a_few_jobs_at_once() -> None:
    state = everything()
    kube = Busy(state, latency_s=0.01)
    names = [f"done-{n}" for n in range(20)]
    state.look.update(map(kube.job, names))
    async with controlled(state, kube):
        await until_gone(kube, *names)
    assert kube.most == WIDTH


async def test_a_job_that_cannot_be_read_is_looked_at_again_and_holds_up_nobody_for_good() -> None:
    state = everything()
    kube = Busy(state)
    kube.fails = "/hidden"
    state.look.update(map(kube.job, ("hidden", "done")))
    async with controlled(state, kube):
        await until_gone(kube, "done")
        assert kube.there("hidden")
        kube.fails = ""
        await until_gone(kube, "hidden")
    assert not state.look


async def test_what_happens_to_a_job_while_it_is_read_calls_for_another_look() -> None:
    state = everything()
    kube = Busy(state, latency_s=0.02)
    key = "job/default/late"
    assert partition_of(key, PARTITIONS) in state.active
    state.look.add(key)  # there is no such job yet
    async with controlled(state, kube):
        await asyncio.sleep(0.01)
        kube.job("late")
        state.look.add(key)
        state.look_event.set()
        await until_gone(kube, "late")
