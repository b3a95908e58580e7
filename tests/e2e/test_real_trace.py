"""The trace of what asked for a job is on every record that follows, up to the status that says it runs."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict

import pytest

from libs.bus.kafka import KafkaBus
from libs.bus.port import Incoming, Outgoing
from libs.bus.settings import KafkaSettings
from libs.contracts.events import EventType
from libs.contracts.topics import DEAD_LETTERS, EVICTIONS, JOBS, OUTCOMES, PLANS, STATUS, TASKS
from libs.domain import keys
from tests.e2e.world import World
from tools.listen import listening

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
URGENT = "00-" + TRACE[::-1] + "-00f067aa0ba902b7-01"
FOLLOWED = [t.name for t in (TASKS, PLANS, OUTCOMES, EVICTIONS, STATUS, DEAD_LETTERS)]


async def test_one_trace_from_the_event_to_the_status_that_says_it_runs(world: World) -> None:
    """A second job evicts tasks of it: its evictions are traced as well. An event whose header is no trace context is
    served, and nothing of the header is passed on."""
    await world.nodes(1)
    first, second, third = (f"{name}-{world.namespace}" for name in ("first", "urgent", "untraced"))
    bus = KafkaBus(KafkaSettings(world.info.kafka_bootstrap, client_id="tracer", source="test"), [JOBS])
    await bus.open()
    seen: defaultdict[str, set[str]] = defaultdict(set)  # trace context -> topics
    phases: defaultdict[str, set[str]] = defaultdict(set)  # trace context -> phases told
    untraced: list[dict[str, object]] = []

    def take(record: Incoming) -> None:
        said = json.loads(record.value or b"{}")
        traced = record.headers.get("traceparent", "")
        seen[traced].add(record.topic)
        if record.topic == STATUS.name:
            assert said.get("traceparent", "") == traced
            phases[traced].add(said["phase"])
            if said["id"] == third:
                untraced.append(dict(record.headers))

    async def submit(id: str, tasks: int, traceparent: str, **what: object) -> None:
        value = json.dumps(world.job(id, tasks, **what)).encode()
        headers = {"traceparent": traceparent}
        await bus.publisher().publish([Outgoing(JOBS.name, id, value, EventType.JOB_SUBMIT, 0, headers=headers)])

    settings = KafkaSettings(world.info.kafka_bootstrap, client_id="listener", check_topics=False)
    try:
        async with listening(settings, FOLLOWED, take):
            await submit(first, 8, PARENT, priority="low")
            view = await world.until_job(first, lambda view: view.status.phase == "Running")
            assert (view.metadata.annotations or {})[keys.TRACEPARENT] == PARENT
            await submit(second, 1, URGENT, priority="high")
            await world.until_job(second, lambda view: view.status.phase == "Running", within_s=60.0)
            await submit(third, 1, "00-not-a-trace", priority="low")
            await world.until_job(third, lambda view: bool(view.status.phase))
            async with asyncio.timeout(15):
                while not ("Running" in phases[PARENT] and "Running" in phases[URGENT] and untraced):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert {TASKS.name, PLANS.name, OUTCOMES.name, STATUS.name} <= seen[PARENT]
            assert {TASKS.name, EVICTIONS.name, PLANS.name, OUTCOMES.name, STATUS.name} <= seen[URGENT]
            assert {"Pending", "Running"} <= phases[PARENT], "the answer to the event, and what came of it"
            assert all("traceparent" not in headers for headers in untraced)
    finally:
        await bus.close()
