"""The shipped manifests on a real API server: they apply, each account may do its work and nothing else, and nobody but
the binder can write what Drystone granted."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.domain import keys
from libs.kube import trainingjobs, writes
from libs.kube.client import KubeClient
from libs.kube.outcomes import why
from libs.kube.port import Kube
from tools.load import Load, kubectl
from tools.stack import StackInfo
from tools.stack.toolbox import need

pytestmark = pytest.mark.real

BASE = Path(__file__).resolve().parents[2] / "k8s" / "base"
SYSTEM = keys.SYSTEM_NAMESPACE
SERVICES = ("watcher", "metrics-collector", "placement", "preemptor", "binder")

#: All that each account may do, by resource with its group: in every namespace, and in Drystone's own.
RIGHTS = {
    "watcher": {
        "namespaces": "list watch",
        "nodes": "list watch",
        "persistentvolumeclaims": "list watch",
        "persistentvolumes": "list watch",
        "pods": "list watch",
        "csinodes.storage.k8s.io": "list watch",
        "storageclasses.storage.k8s.io": "list watch",
        "priorityclasses.scheduling.k8s.io": "list watch",
        "poddisruptionbudgets.policy": "list watch",
        "podgroups.scheduling.x-k8s.io": "list watch",
        "podgroups.scheduling.volcano.sh": "list watch",
        "podgroups.scheduling.run.ai": "list watch",
        "queues.drystone.dev": "list watch",
        "queues/status.drystone.dev": "patch",
        "trainingjobs.drystone.dev": "get list watch create delete",
    },
    "metrics-collector": {},
    "placement": {
        "pods": "list delete",
        "pods/status": "patch",
        "podgroups.scheduling.x-k8s.io": "list",
        "podgroups.scheduling.volcano.sh": "list",
        "podgroups.scheduling.run.ai": "list",
        "trainingjobs.drystone.dev": "get list delete",
        "trainingjobs/status.drystone.dev": "patch",
    },
    "preemptor": {"pods": "get delete", "pods/eviction": "create", "pods/status": "patch"},
    "binder": {
        "persistentvolumeclaims": "get patch",
        "pods": "get create patch",
        "pods/binding": "create",
        "trainingjobs.drystone.dev": "get",
    },
}
AT_HOME = {"watcher": {"leases.coordination.k8s.io": "get create update"}}
#: What anybody who is known to the API server may do: ask about himself.
ANYBODY = {
    "selfsubjectaccessreviews.authorization.k8s.io": "create",
    "selfsubjectrulesreviews.authorization.k8s.io": "create",
    "selfsubjectreviews.authentication.k8s.io": "create",
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
        ("update", "leases.coordination.k8s.io", SYSTEM),  # of another name
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


def test_the_network_policy_is_about_every_services_pods_and_lets_probes_and_metrics_in(info: StackInfo) -> None:
    policy = json.loads(kubectl(info, "get", "networkpolicy", "drystone", "-n", SYSTEM, "-o", "json"))["spec"]
    wanted = policy["podSelector"]["matchLabels"].items()
    open_ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    for deployment in json.loads(kubectl(info, "get", "deployments", "-n", SYSTEM, "-o", "json"))["items"]:
        template = deployment["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items()
        (container,) = template["spec"]["containers"]
        assert {port["containerPort"] for port in container["ports"]} == open_ports


async def rights(info: StackInfo, account: str, namespace: str) -> set[tuple[str, str]]:
    """(verb, resource with its group) of all that the account may do, as the API server's authorizer tells it."""
    kube = KubeClient.from_kubeconfig(info.kubeconfig_for(account))
    try:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        answer = await kube.call("POST", path, json.dumps(body).encode())
    finally:
        await kube.close()
    assert answer.ok, answer.body
    status = json.loads(answer.body)["status"]
    assert not status["incomplete"]
    return {
        (verb, resource + (f".{group}" if group else ""))
        for rule in status["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize("account", SERVICES)
async def test_an_account_may_do_its_work_and_nothing_else(info: StackInfo, account: str) -> None:
    for namespace, more in (("default", {}), (SYSTEM, AT_HOME.get(account, {}))):
        expected = {**RIGHTS[account], **more, **ANYBODY}
        said = {(verb, resource) for resource, verbs in expected.items() for verb in verbs.split()}
        assert await rights(info, account, namespace) == said


@pytest.mark.parametrize("account", SERVICES)
async def test_the_authorizer_denies_each_verb_that_another_service_or_an_intruder_would_want(
    admin: Kube, account: str
) -> None:
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
