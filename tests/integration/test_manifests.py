"""The shipped manifests on a real API server: they apply, each account may do its work and nothing else, and nobody but
the binder can write what Drystone granted."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.domain import keys
from libs.kube import trainingjobs, writes
from libs.kube.client import KubeClient
from libs.kube.outcomes import Outcome, classify, why
from libs.kube.port import Answer, Kube
from tools.load import Load, kubectl, node_object, pod_object
from tools.stack import StackInfo
from tools.stack.toolbox import need

pytestmark = pytest.mark.real

BASE = Path(__file__).resolve().parents[2] / "k8s" / "base"
SYSTEM = keys.SYSTEM_NAMESPACE
SERVICES = ("watcher", "metrics-collector", "placement", "preemptor", "binder")

#: (verb, resource with its group, namespace): what each account does in its work.
NEEDS = {
    "watcher": [
        ("watch", "nodes", ""),
        ("list", "pods", ""),
        ("watch", "trainingjobs.drystone.dev", ""),
        ("create", "trainingjobs.drystone.dev", "anywhere"),
        ("delete", "trainingjobs.drystone.dev", "anywhere"),
        ("update", "leases.coordination.k8s.io", SYSTEM),
        ("watch", "poddisruptionbudgets.policy", ""),
        ("watch", "podgroups.scheduling.x-k8s.io", ""),
    ],
    "metrics-collector": [],
    "placement": [
        ("list", "pods", ""),
        ("patch", "pods/status", "anywhere"),
        ("patch", "trainingjobs.drystone.dev/status", "anywhere"),
        ("delete", "trainingjobs.drystone.dev", "anywhere"),
    ],
    "preemptor": [("create", "pods/eviction", "anywhere"), ("delete", "pods", "anywhere"), ("get", "pods", "anywhere")],
    "binder": [
        ("create", "pods/binding", "anywhere"),
        ("create", "pods", "anywhere"),
        ("get", "pods", "anywhere"),
        ("patch", "pods", "anywhere"),
        ("get", "trainingjobs.drystone.dev", "anywhere"),
    ],
}
#: What no account may do, and below what single ones may not although another service may.
NOBODY = [
    ("get", "secrets", "anywhere"),
    ("list", "secrets", SYSTEM),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
    ("escalate", "clusterroles.rbac.authorization.k8s.io", ""),
    ("impersonate", "users", ""),
    ("patch", "nodes", ""),
    ("delete", "nodes", ""),
    ("patch", "nodes/status", ""),
    ("deletecollection", "pods", "anywhere"),
    ("create", "pods/exec", "anywhere"),
    ("create", "serviceaccounts/token", SYSTEM),
    ("update", "validatingadmissionpolicies.admissionregistration.k8s.io", ""),
    ("patch", "queues.drystone.dev", ""),
    ("update", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("get", "configmaps", "anywhere"),
]
NOT_THIS_ONE = {
    "watcher": [
        ("create", "pods", "anywhere"),
        ("delete", "pods", "anywhere"),
        ("patch", "pods", "anywhere"),
        ("create", "pods/binding", "anywhere"),
        ("create", "pods/eviction", "anywhere"),
        ("patch", "trainingjobs.drystone.dev/status", "anywhere"),
        ("update", "leases.coordination.k8s.io", "anywhere"),
    ],
    "metrics-collector": [("list", "pods", ""), ("list", "nodes", ""), ("get", "trainingjobs.drystone.dev", "x")],
    "placement": [
        ("create", "pods", "anywhere"),
        ("create", "pods/binding", "anywhere"),
        ("create", "pods/eviction", "anywhere"),
        ("patch", "pods", "anywhere"),
        ("create", "trainingjobs.drystone.dev", "anywhere"),
        ("patch", "trainingjobs.drystone.dev", "anywhere"),
    ],
    "preemptor": [
        ("create", "pods", "anywhere"),
        ("create", "pods/binding", "anywhere"),
        ("patch", "pods", "anywhere"),
        ("delete", "trainingjobs.drystone.dev", "anywhere"),
    ],
    "binder": [
        ("delete", "pods", "anywhere"),
        ("create", "pods/eviction", "anywhere"),
        ("list", "pods", ""),
        ("patch", "trainingjobs.drystone.dev/status", "anywhere"),
        ("delete", "trainingjobs.drystone.dev", "anywhere"),
    ],
}


@pytest.fixture
async def admin(info: StackInfo) -> AsyncIterator[Kube]:
    async with Load.of(info) as load:
        yield load.kube


async def allowed(admin: Kube, account: str, verb: str, what: str, namespace: str) -> bool:
    """Asked of the API server's own authorizer."""
    resource, _, subresource = what.partition("/")
    name, _, group = resource.partition(".")
    attributes = {
        "verb": verb,
        "resource": name,
        "group": group,
        "subresource": subresource,
        **({"namespace": namespace} if namespace else {}),
    }
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}", "system:authenticated"]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{SYSTEM}:{account}",
            "groups": groups,
            "resourceAttributes": attributes,
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = await admin.call("POST", path, json.dumps(body).encode())
    assert answer.ok, answer.body
    return bool(json.loads(answer.body)["status"]["allowed"])


def test_the_manifests_apply_again_without_changing_anything(info: StackInfo) -> None:
    before = _generations(info)
    kubectl(info, "apply", "--server-side", "-k", str(BASE))
    assert _generations(info) == before
    assert {name.partition("/")[2] for name in before if name.startswith("Deployment/")} == set(SERVICES)


def _generations(info: StackInfo) -> dict[str, int]:
    kinds = "deployments,services,poddisruptionbudgets,serviceaccounts,configmaps"
    items = json.loads(kubectl(info, "get", kinds, "-n", SYSTEM, "-o", "json"))["items"]
    return {f"{i['kind']}/{i['metadata']['name']}": i["metadata"].get("generation", 0) for i in items}


def test_every_object_is_valid_to_a_strict_reader(info: StackInfo) -> None:
    """Unknown and doubled fields are errors: a mistyped field would be dropped silently otherwise."""
    said = kubectl(
        info, "apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-k", str(BASE)
    )
    assert "serverside-applied" in said
    assert not [line for line in said.splitlines() if "serverside-applied" not in line]


def test_deployments_run_each_service_under_its_own_account_in_the_restricted_profile(info: StackInfo) -> None:
    """The namespace enforces the profile, so the API server refuses pods of a template that is not held to it."""
    for deployment in json.loads(kubectl(info, "get", "deployments", "-n", SYSTEM, "-o", "json"))["items"]:
        name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
        assert template["spec"]["serviceAccountName"] == name
        assert template["spec"]["containers"][0]["args"] == ["service", name]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"try-{name}", "namespace": SYSTEM}}
        kubectl(info, "create", "--dry-run=server", "-f", "-", stdin=json.dumps({**pod, "spec": template["spec"]}))


@pytest.mark.parametrize("account", SERVICES)
async def test_an_account_may_do_its_work(admin: Kube, account: str) -> None:
    refused = [need for need in NEEDS[account] if not await allowed(admin, account, *need)]
    assert refused == []


@pytest.mark.parametrize("account", SERVICES)
async def test_an_account_may_do_nothing_else(admin: Kube, account: str) -> None:
    granted = [wish for wish in [*NOBODY, *NOT_THIS_ONE[account]] if await allowed(admin, account, *wish)]
    assert granted == []


@pytest.mark.parametrize("account", SERVICES)
async def test_a_denied_verb_is_denied_when_it_is_tried(info: StackInfo, account: str) -> None:
    kube = KubeClient.from_kubeconfig(info.kubeconfig_for(account))
    try:
        for method, path in (("DELETE", f"{writes.NODES}/none"), ("GET", f"/api/v1/namespaces/{SYSTEM}/secrets")):
            assert (await kube.call(method, path)).status == 403
    finally:
        await kube.close()


def test_kubectl_agrees(info: StackInfo) -> None:
    """The words that an operator would use to find out."""
    command = [str(need("kubectl")), "--kubeconfig", str(info.kubeconfig), "auth", "can-i", "-n", "default"]
    who = f"--as=system:serviceaccount:{SYSTEM}:binder"
    for verb, resource, said in (("create", "pods/binding", "yes"), ("delete", "pods", "no")):
        done = subprocess.run([*command, verb, resource, who], capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout.strip() == said


# --- what Drystone granted ------------------------------------------------------------------------------------------


class Tenant:
    """Somebody with the usual rights in one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    async def create(self, name: str, *, dry_run: bool = False, **annotations: str) -> Answer:
        marks = {f"drystone.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        body = json.dumps(pod_object(name, namespace=self.namespace, annotations=marks)).encode()
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
        async with asyncio.timeout(30):
            # Roles and the policy become active a moment after they were made.
            while not (await tenant.create("probe", dry_run=True)).ok:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while (await tenant.create("probe", dry_run=True, gpus="0")).ok:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield tenant
    finally:
        await kube.close()


@pytest.mark.parametrize("key", ["gpus", "gpu_memory_mib", "gpu_milli", "claim", "job_key", "task"])
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
        pod: dict[str, Any] = json.loads((await writes.get_pod(admin, tenant.namespace, "train")).body)["metadata"]
        granted = {keys.GPUS: "3", keys.CLAIM: "1.0.1.1.0"}
        answer = await writes.bind(binder, tenant.namespace, "train", pod["uid"], pod["resourceVersion"], node, granted)
        assert answer.ok, why(answer)
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


async def test_a_job_object_does_not_change_and_its_bounds_are_held_by_the_server(admin: Kube, namespace: str) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}

    def role(**changes: Any) -> dict[str, Any]:
        return {"name": "worker", "replicas": 2, "template": template, **changes}

    for roles in ([], [role(replicas=0)], [role(min=3)], [role(name="Not A Name")]):
        answer = await writes.create_trainingjob(admin, namespace, "wrong", {"roles": roles})
        assert answer.status == 422, roles
    answer = await writes.create_trainingjob(admin, namespace, "job", {"roles": [role(replicas=1)]})
    assert answer.ok
    body = json.dumps({"spec": {"roles": [role(replicas=2)]}}).encode()
    answer = await admin.call("PATCH", trainingjobs.path(namespace, "job"), body, content_type=writes.MERGE)
    assert answer.status == 422
    assert "does not change" in why(answer)
