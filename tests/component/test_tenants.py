"""Two tenants, each with a topic, a namespace and a queue: what one says is never done to the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts.events import DeadLetter, EventType, JobStatus
from libs.contracts.tenants import TenantPolicy
from libs.contracts.topics import ALL, DEAD_LETTERS, JOBS, STATUS, Topic
from libs.domain.jobs import Phase
from libs.kube import trainingjobs
from libs.kube.embedded import EmbeddedCluster
from libs.runtime.clock import SystemClock
from services.watcher.intake import Intake
from services.watcher.settings import WatcherSettings

VISION = TenantPolicy(name="vision", topic="vision.jobs", namespaces=("vision", "vision-dev"), queue="org/vision")
ROBOTS = TenantPolicy(name="robots", topic="robots.jobs", namespaces=("robots",), queue="org/robots")
ENCODE = msgspec.json.encode


def job(id: str = "train", **more: Any) -> dict[str, Any]:
    return {"id": id, "roles": [{"template": {"image": "repo/train:1", "resources": {"gpu": 1}}}], **more}


class House:
    """The intake with both tenants' topics."""

    def __init__(self) -> None:
        self.cluster = EmbeddedCluster(namespaces=("vision", "vision-dev", "robots"))
        topics = [topic for topic in ALL if topic is not JOBS]
        self.bus = MemoryBus([*topics, *(Topic(t.topic, 2) for t in (VISION, ROBOTS))])
        self._reader = self.bus.follow([STATUS.name, DEAD_LETTERS.name], from_start=True)
        settings = WatcherSettings(longest_write_s=0, tenants=(VISION, ROBOTS))
        self.intake = Intake(self.cluster, self.bus, settings, SystemClock())

    async def tell(self, tenant: TenantPolicy, said: object, type: str = EventType.JOB_SUBMIT) -> JobStatus:
        """What is answered to one event on a tenant's topic; a rejection has its dead letter."""
        await self.bus.publish([Outgoing(tenant.topic, "k", ENCODE(said), type)])
        statuses: list[JobStatus] = []
        letters: list[DeadLetter] = []
        async with asyncio.timeout(30):
            while not statuses or (statuses[0].phase is Phase.REJECTED and not letters):
                for record in await self._reader.batch(500, 0.1):
                    if record.topic == STATUS.name:
                        statuses.append(msgspec.json.decode(record.value or b"", type=JobStatus))
                    else:
                        letters.append(msgspec.json.decode(record.value or b"", type=DeadLetter))
        (status,) = statuses
        assert [letter.reason for letter in letters] == ([status.message] if status.phase is Phase.REJECTED else [])
        return status

    async def cancel(self, tenant: TenantPolicy, **said: str) -> JobStatus:
        return await self.tell(tenant, said, EventType.JOB_CANCEL)

    def jobs(self, namespace: str) -> list[str]:
        found = msgspec.json.decode(self.cluster.call_now("GET", trainingjobs.path(namespace)).body)
        return [trainingjobs.parse(ENCODE(item)).spec.id for item in found["items"]]


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house, stop = House(), asyncio.Event()
    running = asyncio.create_task(house.intake.run(stop))
    yield house
    stop.set()
    await running


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (job(namespace="robots"), "tenant vision has no namespace robots"),
        (job(namespace="kube-system"), "tenant vision has no namespace kube-system"),
        (job(queue="org/robots"), "tenant vision has no queue org/robots"),
        (job(queue="org"), "tenant vision has no queue org"),
        (job(tenant="robots"), "tenant: no such field"),
        (
            job(roles=[{"template": {"metadata": {"annotations": {"drystone.dev/queue": "org/robots"}}, "spec": {}}}]),
            "drystone.dev/queue is said of the job, not of its pods",
        ),
        (
            job(roles=[{"template": {"metadata": {"namespace": "robots"}, "spec": {}}}]),
            "namespace: is not for templates",
        ),
    ],
)
async def test_an_event_cannot_name_what_is_anothers(house: House, said: dict[str, Any], words: str) -> None:
    status = await house.tell(VISION, said)
    assert (status.phase, status.tenant) == (Phase.REJECTED, "vision")
    assert words in status.message
    assert not house.jobs("robots")
    assert not house.jobs("vision")


async def test_one_id_of_two_tenants_is_two_jobs_and_each_cancels_its_own(house: House) -> None:
    for tenant in (VISION, ROBOTS):
        assert (await house.tell(tenant, job())).reason == "Accepted"
    assert house.jobs("vision") == house.jobs("robots") == ["train"]
    assert (await house.cancel(VISION, id="train")).reason == "Cancelled"
    assert (house.jobs("vision"), house.jobs("robots")) == ([], ["train"])
    assert (await house.cancel(VISION, id="train")).reason == "NothingToCancel"
    assert house.jobs("robots") == ["train"]


async def test_a_cancellation_cannot_reach_into_anothers_namespace(house: House) -> None:
    await house.tell(ROBOTS, job())
    status = await house.cancel(VISION, id="train", namespace="robots")
    assert status.phase is Phase.REJECTED
    assert "tenant vision has no namespace robots" in status.message
    assert house.jobs("robots") == ["train"]


async def test_an_object_made_with_kubectl_is_not_cancelled_by_an_event_that_names_it(house: House) -> None:
    body = {"apiVersion": "drystone.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "train"}}
    spec = {"roles": [{"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"name": "main"}]}}}]}
    assert house.cluster.call_now("POST", trainingjobs.path("vision"), ENCODE({**body, "spec": spec})).ok
    assert (await house.cancel(VISION, id="train")).reason == "NothingToCancel"
    assert len(house.jobs("vision")) == 1


async def test_what_a_tenant_does_not_say_is_its_own(house: House) -> None:
    status = await house.tell(ROBOTS, job())
    assert (status.tenant, status.namespace) == ("robots", "robots")
    found = msgspec.json.decode(house.cluster.call_now("GET", trainingjobs.path("robots")).body)["items"][0]
    assert found["spec"]["queue"] == "org/robots"
    assert found["metadata"]["labels"]["drystone.dev/tenant"] == "robots"
