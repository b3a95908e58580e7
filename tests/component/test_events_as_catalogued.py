"""What the services really write on the bus, held against the committed JSON Schemas."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from cli.embedded import services
from cli.gpus import SimulatedPrometheus
from libs.bus.memory import MemoryBus
from libs.bus.port import Outgoing
from libs.contracts import topics
from libs.contracts.events import EventType
from libs.host.parts import Parts
from libs.kube.embedded import EmbeddedCluster
from libs.kube.sim.kubelet import SimulatedKubelets
from libs.store.embedded import embedded_ledger
from tools import catalog
from tools.load import node_object, pod_object

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("DRYSTONE_")]:
        monkeypatch.delenv(name)


async def test_every_record_of_a_working_system_is_as_its_schema_says() -> None:
    validators = {
        event.type: jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{event.name}.json").read_text()))
        for event in catalog.EVENTS
    }
    cluster, bus, ledger = EmbeddedCluster(), MemoryBus(), embedded_ledger()
    await bus.open()
    await ledger.open()
    kubelets = SimulatedKubelets(cluster)
    seen: Counter[str] = Counter()
    reader = bus.follow([topic.name for topic in topics.ALL], from_start=True)

    async def read(until: set[str]) -> None:
        async with asyncio.timeout(20):
            while not until <= seen.keys():
                for record in await reader.batch(wait_s=0.05):
                    if record.value is not None and record.topic != topics.JOBS.name:
                        validators[record.type].validate(json.loads(record.value))
                    seen[record.type] += 1

    cluster.call_now("POST", "/api/v1/nodes", json.dumps(node_object("n1", gpus=2)).encode())
    pods = "/api/v1/namespaces/default/pods"
    job = {"id": "j", "roles": [{"name": "worker", "template": {"image": "train:1", "resources": {"gpu": 1}}}]}
    low = pod_object("low", gpus=2, labels={"priority": "low"})
    high = pod_object("high", gpus=2, labels={"priority": "high"})
    async with (
        SimulatedPrometheus(cluster).serving() as url,
        services(Parts(bus, ledger, cluster), url),
    ):
        cluster.call_now("POST", pods, json.dumps(low).encode())
        await read({EventType.CLUSTER, EventType.GPUS, EventType.TASKS, EventType.PLANS, EventType.OUTCOMES})
        await read({EventType.MIX})
        cluster.call_now("POST", pods, json.dumps(high).encode())
        await read({EventType.EVICTIONS})
        for value in (json.dumps(job).encode(), b"no json"):
            await bus.publish([Outgoing(topics.JOBS.name, "j", value, EventType.JOB_SUBMIT)])
        await read({EventType.STATUS, EventType.DEAD_LETTER})
    kubelets.stop()
    assert seen.keys() == validators.keys() - {EventType.JOB_CANCEL}
