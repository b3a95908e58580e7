"""Load for a running API server, written as an administrator: manifests, nodes, pods, and a watch that counts.

Everything goes through raw requests with prebuilt bodies, so that the creator costs the same whoever schedules.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from libs.bus.admin import ensure_topics
from libs.bus.settings import KafkaSettings
from libs.host.open import kafka_settings
from libs.host.settings import PREFIX, CommonSettings
from libs.kube.client import KubeClient
from libs.kube.port import WatchBroken, WatchGone
from tools.stack import StackInfo
from tools.stack.accounts import ADMIN
from tools.stack.toolbox import need

ROOT = Path(__file__).resolve().parent.parent


def kubectl(info: StackInfo, *arguments: str, stdin: str | None = None) -> str:
    """kubectl of the stack as its administrator; raises with kubectl's own words."""
    done = subprocess.run(
        [str(need("kubectl")), "--kubeconfig", str(info.kubeconfig), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise LoadError(f"kubectl {' '.join(arguments[:3])}: {done.stderr.strip()}")
    return done.stdout


def apply_base(info: StackInfo) -> None:
    """Everything under k8s/base by server-side apply: CRDs first, because their objects need them established."""
    kubectl(info, "apply", "--server-side", "-f", str(ROOT / "k8s" / "base" / "crds"))
    kubectl(info, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    kubectl(info, "apply", "--server-side", "-k", str(ROOT / "k8s" / "base"))
    # The Deployments would make pods without a kubelet here; the services run as local processes instead.


def node_object(
    name: str,
    *,
    gpus: int = 8,
    cpu: str = "96",
    memory: str = "1024Gi",
    model: str = "A100",
    gpu_mib: int = 81920,
    labels: dict[str, str] | None = None,
    fake_kubelet: bool = False,
) -> dict[str, object]:
    amounts = {"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "nvidia.com/gpu.product": model,
                "nvidia.com/gpu.memory": str(gpu_mib),
                **(labels or {}),
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"} if fake_kubelet else {},
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod_object(
    name: str,
    *,
    scheduler: str = "drystone",
    namespace: str = "default",
    gpus: int = 1,
    cpu: str = "4",
    memory: str = "16Gi",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    priority_class: str = "",
    **spec: object,
) -> dict[str, object]:
    amounts: dict[str, str] = {"cpu": cpu, "memory": memory}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {
            "schedulerName": scheduler,
            **({"priorityClassName": priority_class} if priority_class else {}),
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}],
            **spec,
        },
    }


class Load:
    """An administrator's client with the few calls that load needs."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube = kube

    @classmethod
    @asynccontextmanager
    async def of(cls, info: StackInfo) -> AsyncIterator[Load]:
        kube = KubeClient.from_kubeconfig(info.kubeconfig)
        try:
            yield cls(kube)
        finally:
            await kube.close()

    async def create_all(self, path: str, objects: Iterable[dict[str, object]], *, width: int = 32) -> None:
        """POST each object; at most `width` at once. AlreadyExists is fine."""
        bodies = iter([json.dumps(o).encode() for o in objects])

        async def worker() -> None:
            for body in bodies:
                answer = await self.kube.call("POST", path, body, timeout_s=30.0)
                if not answer.ok and answer.status != 409:
                    raise LoadError(f"POST {path}: {answer.status} {answer.body[:300]!r}")

        async with asyncio.TaskGroup() as workers:
            for n in range(width):
                workers.create_task(worker(), name=f"creator {n}")

    async def create_nodes(self, nodes: Sequence[dict[str, object]]) -> None:
        """Nodes with their status (the status of a created node is kept by the API server)."""
        await self.create_all("/api/v1/nodes", nodes)

    async def create_pods(self, pods: Sequence[dict[str, object]], namespace: str = "default") -> None:
        await self.create_all(f"/api/v1/namespaces/{namespace}/pods", pods)

    async def delete_pods(self, namespace: str = "default", selector: str = "", *, limit_s: float = 60.0) -> None:
        """Delete at once (no kubelet needs to agree) and wait until none is left."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        params = {"labelSelector": selector} if selector else {}
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            await self.kube.call(
                "DELETE",
                path,
                b'{"gracePeriodSeconds":0,"propagationPolicy":"Background"}',
                params=params,
                timeout_s=60,
            )
            left = await self.kube.call("GET", path, params={**params, "limit": "1"}, timeout_s=30)
            if left.ok and not msgspec.json.decode(left.body, type=_List).items:
                return
            await asyncio.sleep(0.2)
        raise LoadError("pods are still there")

    async def delete_jobs(self, namespace: str = "default") -> None:
        """Delete all TrainingJobs; their pods go by owner where a garbage collector runs, else by `delete_pods`."""
        await self.kube.call("DELETE", f"/apis/drystone.dev/v1alpha1/namespaces/{namespace}/trainingjobs", timeout_s=60)

    @asynccontextmanager
    async def count_bound(self, namespace: str = "default", selector: str = "") -> AsyncIterator[BoundCount]:
        """Count pods with a node by a watch that starts now."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        params = {"labelSelector": selector} if selector else {}
        listed = await self.kube.call("GET", path, params={**params, "limit": "1"}, timeout_s=30)
        version = msgspec.json.decode(listed.body, type=_List).metadata.resourceVersion
        count = BoundCount()
        task = asyncio.create_task(
            self._follow(path, {**params, "resourceVersion": version}, count), name="bound count"
        )
        try:
            yield count
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, path: str, params: dict[str, str], count: BoundCount) -> None:
        params = {**params, "allowWatchBookmarks": "true", "timeoutSeconds": "600"}
        while True:
            try:
                async for kind, raw in self.kube.watch(path, params=params, silence_s=600):
                    pod = _DECODE(raw)
                    params["resourceVersion"] = pod.metadata.resourceVersion
                    if kind in ("ADDED", "MODIFIED"):
                        count.seen(pod)
            except WatchBroken:
                await asyncio.sleep(0.05)
            except WatchGone as gone:
                raise LoadError("the harness' own watch fell behind") from gone


class BoundCount:
    """Who was seen created and bound, and when (monotonic seconds)."""

    def __init__(self) -> None:
        self.created_at: dict[str, float] = {}
        self.bound_at: dict[str, float] = {}
        self.node: dict[str, str] = {}
        self._changed = asyncio.Event()

    def seen(self, pod: _Pod) -> None:
        now = time.monotonic()
        name = pod.metadata.name
        self.created_at.setdefault(name, now)
        if pod.spec.nodeName and name not in self.bound_at:
            self.bound_at[name] = now
            self.node[name] = pod.spec.nodeName
            self._changed.set()

    async def reach(self, wanted: int, limit_s: float) -> float:
        """The time at which `wanted` pods were bound; raises LoadError after the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while len(self.bound_at) < wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise LoadError(f"{len(self.bound_at)} of {wanted} pods bound after {limit_s:.0f} s") from None
        return sorted(self.bound_at.values())[wanted - 1]


class _Meta(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""


class _Spec(msgspec.Struct):
    nodeName: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _List(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


_DECODE = msgspec.json.Decoder(_Pod).decode


def create_topics(info: StackInfo) -> None:
    """All topics of the table; raises LoadError if one that exists has another shape."""
    drift = asyncio.run(ensure_topics(kafka_of(info, ADMIN), create=True))
    if drift:
        raise LoadError("; ".join(map(str, drift)))


def kafka_of(info: StackInfo, account: str) -> KafkaSettings:
    """Kafka as this account reaches it."""
    said: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in info.environment_for(account).items()
    }
    return kafka_settings("tools", CommonSettings(kafka_bootstrap=info.kafka_bootstrap, **said))


class LoadError(Exception):
    """The load could not be given or did not finish; says what was seen."""
