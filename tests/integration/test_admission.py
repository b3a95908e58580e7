"""The shipped admission policies on a real API server: nobody but the binder writes what Drystone granted, a job object
gets nobody what Pod Security would refuse him, and a namespace that opted in needs no word in its pods."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.domain import keys
from libs.domain.resources import GpuRequest
from libs.kube import trainingjobs, writes
from libs.kube.client import KubeClient
from libs.kube.outcomes import Outcome, classify, why
from libs.kube.pods import parse_pod
from libs.kube.port import Answer, Kube
from tools.load import Load, kubectl, node_object, pod_object
from tools.stack import StackInfo

pytestmark = pytest.mark.real

EXCLUSIVE = Path(__file__).resolve().parents[2] / "k8s" / "exclusive"
VISIBLE = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{keys.GPUS}']"}},
}


@pytest.fixture
async def admin(info: StackInfo) -> AsyncIterator[Kube]:
    async with Load.of(info) as load:
        yield load.kube


async def until(true: Any) -> None:
    """Roles and policies become active a moment after they were made."""
    async with asyncio.timeout(30):
        while not await true():  # noqa: ASYNC110 - it is asked, not told
            await asyncio.sleep(0.1)


class Tenant:
    """Somebody with the usual rights in one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def create(self, name: str, *, dry_run: bool = False, **annotations: str) -> Answer:
        marks = {f"drystone.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        # On no node: services that run meanwhile must not bind it before the test does.
        nowhere = {"drystone-test": "by-hand"}
        pod = pod_object(name, namespace=self.namespace, annotations=marks, nodeSelector=nowhere)
        body = json.dumps(pod).encode()
        params = {"dryRun": "All"} if dry_run else {}
        return await self.kube.call("POST", writes.pods_path(self.namespace), body, params=params)

    async def annotate(self, name: str, key: str, value: str | None) -> Answer:
        body = json.dumps({"metadata": {"annotations": {key: value}}}).encode()
        return await self.kube.call("PATCH", writes.pods_path(self.namespace, name), body, content_type=writes.MERGE)


@pytest.fixture
async def tenant(info: StackInfo, admin: Kube, namespace: str) -> AsyncIterator[Tenant]:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant-a"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant-a"}],
    }
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    assert (await admin.call("POST", path, json.dumps(binding).encode())).ok
    kube = KubeClient.from_kubeconfig(info.kubeconfig_for("tenant-a"))
    try:
        tenant = Tenant(kube, namespace)

        async def may_create() -> bool:
            return (await tenant.create("probe", dry_run=True)).ok

        async def may_not_forge() -> bool:
            return not (await tenant.create("probe", dry_run=True, gpus="0")).ok

        await until(may_create)
        await until(may_not_forge)
        yield tenant
    finally:
        await kube.close()


@pytest.mark.parametrize(
    "key", ["gpus", "gpu_memory_mib", "gpu_milli", "claim", "job_key", "task", "fence", "fence_mark"]
)
async def test_a_tenant_cannot_create_a_pod_that_says_it_was_granted_something(tenant: Tenant, key: str) -> None:
    answer = await tenant.create("forged", **{key: "0"})
    assert classify(answer) is Outcome.REFUSED
    assert "written by its binder alone" in why(answer)


async def test_a_tenant_can_neither_change_nor_remove_what_was_granted(
    info: StackInfo, admin: Kube, tenant: Tenant
) -> None:
    assert (await tenant.create("train", gpu_fraction="0.5")).ok
    node = f"node-of-{tenant.namespace}"
    assert (await admin.call("POST", writes.NODES, json.dumps(node_object(node)).encode())).ok
    binder = KubeClient.from_kubeconfig(info.kubeconfig_for("binder"))
    try:
        granted = {keys.GPUS: "3", keys.CLAIM: "1.0.1.1.0"}

        async def bound() -> bool:
            """Placement may say meanwhile why the pod waits, which moves its version on."""
            pod = json.loads((await writes.get_pod(admin, tenant.namespace, "train")).body)["metadata"]
            uid, version = pod["uid"], pod["resourceVersion"]
            answer = await writes.bind(binder, tenant.namespace, "train", uid, version, node, granted)
            assert answer.ok or answer.status == 409, why(answer)
            return answer.ok

        await until(bound)
        for value in ("0", None):
            answer = await tenant.annotate("train", keys.GPUS, value)
            assert classify(answer) is Outcome.REFUSED
            assert "written by its binder alone" in why(answer)
        assert (await tenant.annotate("train", "example.com/mine", "1")).ok, "other annotations are the tenant's own"
        said = json.loads((await writes.get_pod(admin, tenant.namespace, "train")).body)["metadata"]["annotations"]
        assert (said[keys.GPUS], said["example.com/mine"]) == ("3", "1")
    finally:
        await binder.close()
        await admin.call("DELETE", f"{writes.NODES}/{node}")


async def test_there_is_no_way_round_through_a_subresource(info: StackInfo, admin: Kube, tenant: Tenant) -> None:
    """Who may patch a pod's status or bind pods, another scheduler say, still grants nothing in our name."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "other-scheduler"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
        ],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "other-scheduler"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "other-scheduler"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant-a"}],
    }
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{tenant.namespace}"
    for kind, body in (("roles", role), ("rolebindings", binding)):
        assert (await admin.call("POST", f"{rbac}/{kind}", json.dumps(body).encode())).ok
    assert (await tenant.create("train")).ok
    path = writes.pods_path(tenant.namespace, "train")

    async def patched(annotations: dict[str, str]) -> Answer:
        body = json.dumps({"metadata": {"annotations": annotations}}).encode()
        return await tenant.kube.call("PATCH", f"{path}/status", body, content_type=writes.MERGE)

    async def may_patch() -> bool:
        return (await patched({"example.com/mine": "1"})).ok

    await until(may_patch)
    answer = await patched({keys.GPUS: "0"})
    assert "written by its binder alone" in why(answer)
    node = f"node-of-{tenant.namespace}"
    assert (await admin.call("POST", writes.NODES, json.dumps(node_object(node)).encode())).ok
    try:
        pod = json.loads((await writes.get_pod(admin, tenant.namespace, "train")).body)["metadata"]
        place = (tenant.namespace, "train", pod["uid"], "", node)
        answer = await writes.bind(tenant.kube, *place, {keys.GPUS: "0"})
        assert classify(answer) is Outcome.REFUSED
        assert "written by its binder alone" in why(answer)
        assert (await writes.bind(tenant.kube, *place, {})).ok
    finally:
        await admin.call("DELETE", f"{writes.NODES}/{node}")


# --- job objects ------------------------------------------------------------------------------------------------------


def role_of(spec: dict[str, Any]) -> dict[str, Any]:
    return {"name": "worker", "replicas": 1, "template": {"spec": {"containers": [{"name": "main"}], **spec}}}


def contained(**said: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", **said}]}


@pytest.fixture
async def judged(admin: Kube, namespace: str) -> Kube:
    """The policy has become active."""
    body = {
        "apiVersion": keys.API_VERSION,
        "kind": trainingjobs.KIND,
        "metadata": {"name": "probe"},
        "spec": {"roles": [role_of({"hostPID": True})]},
    }

    async def refused() -> bool:
        path, raw = trainingjobs.path(namespace), json.dumps(body).encode()
        return (await admin.call("POST", path, raw, params={"dryRun": "All"})).status == 422

    await until(refused)
    return admin


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"hostNetwork": True}, "host namespaces"),
        ({"hostPID": True}, "host namespaces"),
        ({"hostIPC": True}, "host namespaces"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "paths of the host"),
        (contained(securityContext={"privileged": True}), "privileged"),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "privileged"),
        (contained(securityContext={"procMount": "Unmasked"}), "privileged"),
        (contained(securityContext={"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}), "this capability"),
        (contained(ports=[{"containerPort": 80, "hostPort": 80}]), "ports of the host"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "unconfined"),
        (contained(securityContext={"appArmorProfile": {"type": "Unconfined"}}), "unconfined"),
        ({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]}}, "sysctls"),
        ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "SELinux"),
        (contained(securityContext={"seLinuxOptions": {"type": "container_t", "user": "system_u"}}), "SELinux"),
        (contained(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 80}}), "another host"),
        (contained(startupProbe={"tcpSocket": {"host": "metadata.internal", "port": 80}}), "another host"),
        (contained(lifecycle={"preStop": {"httpGet": {"host": "10.0.0.1", "port": 80}}}), "another host"),
    ],
)
async def test_a_job_object_does_not_get_its_maker_more_than_a_pod_would(
    judged: Kube, namespace: str, spec: dict[str, Any], said: str
) -> None:
    """The binder makes the pods under its own account, so the object is judged when it is made."""
    answer = await writes.create_trainingjob(
        judged, namespace, "job", {"roles": [role_of({}), {**role_of(spec), "name": "b"}]}
    )
    assert answer.status == 422
    assert said in why(answer)


async def test_an_unconfined_apparmor_annotation_of_a_template_is_judged_as_well(judged: Kube, namespace: str) -> None:
    role = role_of({})
    key = "container.apparmor.security.beta.kubernetes.io/main"
    for said, taken in (("unconfined", False), ("localhost/train", True), ("runtime/default", True)):
        role["template"]["metadata"] = {"annotations": {key: said, "example.com/team": "a"}}
        answer = await writes.create_trainingjob(judged, namespace, f"job-{said.partition('/')[0]}", {"roles": [role]})
        assert answer.ok == taken, why(answer)
        assert taken or "AppArmor" in why(answer)


async def test_an_ordinary_job_object_passes_and_a_trusted_namespace_may_have_more(
    info: StackInfo, admin: Kube, namespace: str
) -> None:
    ordinary = {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **contained(
            securityContext={"capabilities": {"drop": ["ALL"]}, "seLinuxOptions": {"type": "container_t"}},
            ports=[{"containerPort": 80}],
            livenessProbe={"httpGet": {"path": "/", "port": 80}},
        ),
    }
    answer = await writes.create_trainingjob(admin, namespace, "ordinary", {"roles": [role_of(ordinary)]})
    assert answer.ok, why(answer)
    assert (await admin.call("DELETE", trainingjobs.path(namespace, "ordinary"))).ok
    kubectl(info, "label", "namespace", namespace, "drystone.dev/pod-security=privileged")
    roles = {"roles": [role_of({"hostIPC": True})]}

    async def passes() -> bool:
        return (await writes.create_trainingjob(admin, namespace, "trusted", roles)).ok

    await until(passes)


# --- namespaces that opted in -----------------------------------------------------------------------------------------


class Opted:
    """Pods as the API server would keep them, in a namespace with the label; nothing is really created."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace

    async def pod(self, *, meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
        answer = await self._create(meta, spec)
        assert answer.ok, why(answer)
        return dict(json.loads(answer.body))

    async def refusal(self, **spec: Any) -> str:
        """Why the pod is refused, empty if it is not."""
        answer = await self._create(None, spec)
        return "" if answer.ok else why(answer)

    async def _create(self, meta: dict[str, Any] | None, spec: dict[str, Any]) -> Answer:
        body = {
            "metadata": {"name": "p", **(meta or {})},
            "spec": {"containers": [{"name": "main", "image": "train:1"}], **spec},
        }
        path = writes.pods_path(self._namespace)
        return await self._kube.call("POST", path, json.dumps(body).encode(), params={"dryRun": "All"})


@pytest.fixture
async def opted(info: StackInfo, admin: Kube, namespace: str) -> Opted:
    kubectl(info, "label", "namespace", namespace, "drystone.dev/schedule=true")
    opted = Opted(admin, namespace)

    async def active() -> bool:
        return bool((await opted.pod())["spec"]["schedulerName"] == "drystone")

    await until(active)
    return opted


async def test_pods_go_to_drystone_and_every_container_sees_its_devices(opted: Opted) -> None:
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    other = {"name": "A", "value": "b"}
    containers = [
        {"name": "bare", "image": "i"},
        {"name": "other", "image": "i", "env": [other]},
        {"name": "own", "image": "i", "env": [own, other]},
    ]
    spec = (await opted.pod(containers=containers, initContainers=[{"name": "init", "image": "i"}]))["spec"]
    assert spec["schedulerName"] == "drystone"
    assert {c["name"]: c["env"] for c in (*spec["containers"], *spec["initContainers"])} == {
        "bare": [VISIBLE],
        "other": [other, VISIBLE],
        "own": [VISIBLE, other],
        "init": [VISIBLE],
    }


async def test_pods_of_a_daemonset_and_of_another_scheduler_are_left_alone(opted: Opted) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    for pod in (
        await opted.pod(meta={"ownerReferences": [owner]}),
        await opted.pod(schedulerName="other-scheduler"),
        await opted.pod(nodeName="some-node"),
    ):
        assert pod["spec"]["schedulerName"] != "drystone"
        assert "env" not in pod["spec"]["containers"][0]


async def test_a_namespace_without_the_label_is_left_alone(admin: Kube, namespace: str) -> None:
    pod = await Opted(admin, namespace).pod()
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert "env" not in pod["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, GpuRequest(count=1, mib=3000)),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25"}, GpuRequest(count=1, milli=250)),
        ({"nvidia.com/gpumem": "3000"}, GpuRequest(count=1, mib=3000)),
        ({"nvidia.com/gpu": "1"}, GpuRequest(count=1)),
        ({"nvidia.com/gpu": "4"}, GpuRequest(count=4)),
    ],
)
async def test_a_manifest_of_hamis_is_read_as_the_part_of_a_device_that_it_means(
    opted: Opted, limits: dict[str, str], expected: GpuRequest
) -> None:
    containers = [{"name": "main", "image": "i", "resources": {"limits": {"cpu": "1", **limits}}}]
    view = parse_pod(json.dumps(await opted.pod(containers=containers)).encode())
    assert (view.request.gpu, view.unsupported) == (expected, ())


# --- exclusive mode ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def exclusive(info: StackInfo, admin: Kube, namespace: str) -> AsyncIterator[Opted]:
    """The policies of `k8s/exclusive`, bound to the test's namespace alone: the stack is shared."""
    documents = list(yaml.safe_load_all((EXCLUSIVE / "policy.yaml").read_text()))
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for document in documents:
        if document["kind"].endswith("Binding"):
            document["spec"]["matchResources"] = {"namespaceSelector": selector}
    text = "---\n".join(yaml.safe_dump(document) for document in documents)
    kubectl(info, "apply", "--server-side", "-f", "-", stdin=text)
    pods = Opted(admin, namespace)

    async def active() -> bool:
        return "given out by Drystone alone" in await pods.refusal(containers=[asking("1")])

    await until(active)
    yield pods
    kubectl(info, "delete", "-f", "-", stdin=text)


def asking(gpus: str, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    return {"name": "main", "image": "i", "resources": {"limits": {resource: gpus}}}


async def test_in_exclusive_mode_devices_are_asked_of_drystone_or_not_at_all(exclusive: Opted) -> None:
    assert "names no node" in await exclusive.refusal(
        containers=[asking("1")], schedulerName="drystone", nodeName="some-node"
    )
    assert "set schedulerName to drystone" in await exclusive.refusal(
        containers=[asking("1", "nvidia.com/mig-1g.10gb")]
    )
    plain = {"name": "main", "image": "i"}
    init = {**asking("1"), "name": "init"}
    assert "set schedulerName" in await exclusive.refusal(containers=[plain], initContainers=[init])
    await exclusive.pod(containers=[asking("1")], schedulerName="drystone")
    await exclusive.pod(containers=[plain])
    await exclusive.pod(containers=[plain], nodeName="some-node")


async def test_in_exclusive_mode_only_the_binder_and_the_clusters_scheduler_bind(
    info: StackInfo, admin: Kube, exclusive: Opted, namespace: str
) -> None:
    # Services may run beside: this pod selects a node that is not there, so they leave it alone.
    wanted = pod_object("p", namespace=namespace, nodeSelector={"kubernetes.io/hostname": "nowhere"})
    assert (await admin.call("POST", writes.pods_path(namespace), json.dumps(wanted).encode())).ok
    pod = json.loads((await writes.get_pod(admin, namespace, "p")).body)["metadata"]
    node = f"node-of-{namespace}"
    assert (await admin.call("POST", writes.NODES, json.dumps(node_object(node)).encode())).ok
    binder = KubeClient.from_kubeconfig(info.kubeconfig_for("binder"))
    try:
        # Without its version: they may write why it waits.
        place = (namespace, "p", pod["uid"], "", node)
        refused = await writes.bind(admin, *place, {})
        assert "bound by Drystone and the cluster's own scheduler alone" in why(refused)
        assert (await writes.bind(binder, *place, {keys.GPUS: "0"})).ok
    finally:
        await binder.close()
        await admin.call("DELETE", f"{writes.NODES}/{node}")


def test_the_exclusive_overlay_applies(info: StackInfo) -> None:
    kubectl(info, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", str(EXCLUSIVE))
