"""A gang of one-GPU pods from the first create to all bound, and hopeless jobs from their create to their Never.

Never is what the status topic says, as a verdict of that kind, and what stands on the object: the condition of a pod,
the status of a TrainingJob. Both are measured for both; on the object it has to be the topic's reason.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.pipeline import prepare
from libs.bus.port import Incoming
from libs.bus.settings import KafkaSettings
from libs.contracts.events import JobStatus
from libs.contracts.topics import STATUS
from libs.domain import keys
from libs.domain.verdicts import Kind
from libs.kube import trainingjobs
from tools.fleet import Fleet
from tools.listen import listening
from tools.load import Load, LoadError, pod_object
from tools.stack import Stack, StackInfo

HOPELESS_LIMIT_S = 30.0
#: What is asked, seconds: a gang of GANG_SIZE on 500 nodes, and Never.
GANG_SIZE, GANG_S, NEVER_S = 512, 2.5, 0.5
_HOPELESS = 10
_GPUS = 64


async def run(size: int, nodes: int, runs: int, *, report: Callable[[str], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        stack = Stack(Path(scratch) / "stack", parts=("etcd", "apiserver", "kafka", "redis", "prometheus"))
        info = await asyncio.to_thread(stack.up)
        gangs: list[float] = []
        never: dict[str, list[float]] = {where: [] for where in WHERE}
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                async with Fleet(info, Path(scratch) / "fleet") as fleet:
                    await fleet.start()
                    for n in range(runs + 1):
                        gangs.append(await _gang(load, f"gang-{n}", size))
                        report(f"gang of {size}: {gangs[-1]:.2f} s{' (warm-up)' if n == 0 else ''}")
                        await load.delete_pods()
                        await asyncio.sleep(1.0)
                    async with _listening(info) as verdicts:
                        for n in range(_HOPELESS):
                            for kind in (_Pod(f"hopeless-{n}"), _Job(f"hopeless-{n}")):
                                for where, took in (await _hopeless(load, kind, verdicts)).items():
                                    never[where].append(took)
                    for where, took_s in never.items():
                        report(f"Never {where}: {statistics.median(took_s):.3f} s, at most {max(took_s):.3f} s")
        finally:
            await asyncio.to_thread(stack.down)
    longest = max(took for took_s in never.values() for took in took_s)
    return {
        "size": size,
        "nodes": nodes,
        "gang_s": [round(s, 3) for s in gangs[1:]],
        "gang_median_s": round(statistics.median(gangs[1:]), 3),
        "never": {
            where: {
                "median_s": round(statistics.median(took_s), 3),
                "max_s": round(max(took_s), 3),
                "all_s": [round(took, 3) for took in took_s],
            }
            for where, took_s in never.items()
        },
        "within": longest <= NEVER_S and (size > GANG_SIZE or max(gangs[1:]) <= GANG_S),
    }


async def _gang(load: Load, name: str, size: int) -> float:
    marks = {keys.JOB: name, keys.GANG_MIN: str(size)}
    pods = [pod_object(f"{name}-{n}", labels={"run": name}, annotations=marks) for n in range(size)]
    async with load.count_bound(selector=f"run={name}") as count:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as both:
            both.create_task(load.create_pods(pods), name="creator")
            bound = both.create_task(count.reach(size, 60), name="bound")
        return bound.result() - begun


class _Pod:
    """A pod that no node of this cluster, empty, would take."""

    where = ("on the status topic, of a pod", "on the pod")
    directory = "/api/v1/namespaces/default/pods"

    def __init__(self, name: str) -> None:
        self.name = name
        self.job = f"pod/default/{name}"
        self.manifest = pod_object(name, gpus=_GPUS)

    @staticmethod
    def reason(raw: bytes) -> str:
        conditions = msgspec.json.decode(raw).get("status", {}).get("conditions", ())
        said = (c["reason"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False")
        return str(next(said, ""))


class _Job:
    """A TrainingJob of such pods."""

    where = ("on the status topic, of a TrainingJob", "on the TrainingJob")
    directory = trainingjobs.path("default")

    def __init__(self, name: str) -> None:
        self.name = name
        self.job = f"job/default/{name}"
        limits = {"cpu": "1", "memory": "1Gi", keys.GPU_RESOURCE: str(_GPUS)}
        template = {"spec": {"containers": [{"name": "main", "image": "train:1", "resources": {"limits": limits}}]}}
        self.manifest: dict[str, object] = {
            "apiVersion": keys.API_VERSION,
            "kind": trainingjobs.KIND,
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"roles": [{"name": "worker", "replicas": 2, "template": template}]},
        }

    @staticmethod
    def reason(raw: bytes) -> str:
        return trainingjobs.parse(raw).status.reason


WHERE = (*_Pod.where, *_Job.where)


class _Verdicts:
    """Verdicts of Never as they come, with the reason and the time (monotonic), by job."""

    def __init__(self) -> None:
        self.never: dict[str, tuple[str, float]] = {}
        self.came = asyncio.Event()

    def take(self, record: Incoming) -> None:
        status = msgspec.json.decode(record.value or b"null", type=JobStatus)
        if status.verdict is not None and status.verdict.kind is Kind.NEVER:
            self.never.setdefault(status.job, (status.reason, time.monotonic()))
            self.came.set()


@asynccontextmanager
async def _listening(info: StackInfo) -> AsyncIterator[_Verdicts]:
    verdicts = _Verdicts()
    settings = KafkaSettings(info.kafka_bootstrap, client_id="bench", check_topics=False)
    async with listening(settings, [STATUS.name], verdicts.take):
        yield verdicts


async def _hopeless(load: Load, one: _Pod | _Job, verdicts: _Verdicts) -> dict[str, float]:
    """Seconds until the status topic has the verdict Never of it, and until the object says so itself."""
    begun = time.monotonic()
    await load.create_all(one.directory, [one.manifest])
    on_topic, on_object = one.where
    async with asyncio.timeout(HOPELESS_LIMIT_S):
        said = ""
        while not said:
            answer = await load.kube.call("GET", f"{one.directory}/{one.name}")
            said = one.reason(answer.body)
            if not said:
                await asyncio.sleep(0.005)
        shown = time.monotonic()
        while one.job not in verdicts.never:
            verdicts.came.clear()
            await verdicts.came.wait()
    reason, told = verdicts.never[one.job]
    if said != reason:
        raise LoadError(f"{one.job}: the object says {said}, the topic {reason}")
    return {on_topic: told - begun, on_object: shown - begun}
