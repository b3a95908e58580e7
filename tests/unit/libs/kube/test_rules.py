"""Placement rules as they are read from specs, with what the API server would have filled in."""

from typing import Any

import msgspec
import pytest

from libs.domain.jobs import GATES
from libs.domain.rules import HostPort, NodeTerm, PodTerm, Requirement, Rules, Spread
from libs.kube import trainingjobs
from tests.unit.libs.kube.objects_for_tests import pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def read(**spec: Any) -> Rules:
    view = pod(labels={"app": "web", "color": "red"}, **spec)
    assert view.unsupported == ()
    assert view.rules is not None
    assert view.to_task().rules == view.rules
    return view.rules


def test_a_plain_pod_has_no_rules_and_brings_its_labels() -> None:
    view = pod(labels={"app": "web"}, affinity={}, topologySpreadConstraints=[])
    assert view.rules is None
    assert view.to_task().labels == {"app": "web"}


def test_preferred_nodes_are_read_with_their_weights() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    soft = [{"weight": 7, "preference": term}, {"weight": 3, "preference": {}}]
    rules = read(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": soft}})
    assert rules == Rules(preferred=((3, NodeTerm()), (7, NodeTerm((Requirement("disk", "Exists"),)))))


def test_preferences_among_pods_are_no_rules() -> None:
    soft = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    spread = [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]
    affinity = {"podAffinity": soft, "podAntiAffinity": soft}
    assert pod(affinity=affinity, topologySpreadConstraints=spread).rules is None


def test_node_affinity_is_read_in_one_order() -> None:
    def terms(*expressions: dict[str, Any]) -> dict[str, Any]:
        term = {"matchExpressions": list(expressions), "matchFields": []}
        return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}

    one = {"key": "a", "operator": "In", "values": ["2", "1"]}
    two = {"key": "b", "operator": "Exists"}
    assert read(affinity=terms(one, two)) == read(affinity=terms(two, one))
    expected = NodeTerm((Requirement("a", "In", ("1", "2")), Requirement("b", "Exists")))
    assert read(affinity=terms(one, two)).node == (expected,)


def test_affinity_that_requires_one_of_no_terms_is_not_the_same_as_none() -> None:
    assert read(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}).node == ()


@pytest.mark.parametrize(
    ("said", "namespaces", "selector"),
    [
        ({}, ("team-a",), None),
        ({"namespaces": ["b", "a"]}, ("a", "b"), None),
        ({"namespaceSelector": {}}, (), ()),
        ({"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"t": "x"}}}, ("a",),
         (Requirement("t", "In", ("x",)),)),
    ],
)  # fmt: skip
def test_whom_a_term_means(said: dict[str, Any], namespaces: tuple[str, ...], selector: Any) -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}, **said}
    expected = PodTerm("zone", (Requirement("app", "In", ("db",)),), namespaces, selector)
    assert read(affinity={"podAntiAffinity": {REQUIRED: [term]}}).anti_affinity == (expected,)


def test_label_keys_join_the_selector_with_the_pods_own_values() -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": {},
        "matchLabelKeys": ["color", "absent"],
        "mismatchLabelKeys": ["app"],
    }
    [read_term] = read(affinity={"podAffinity": {REQUIRED: [term]}}).affinity
    assert read_term.selector == (Requirement("app", "NotIn", ("web",)), Requirement("color", "In", ("red",)))


def test_spreading_with_its_defaults() -> None:
    bare = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
    full = {
        **bare,
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["color"],
    }
    selector = (Requirement("app", "Exists"), Requirement("color", "In", ("red",)))
    assert read(topologySpreadConstraints=[bare, full]).spread == (
        Spread("zone", 2, None),
        Spread("zone", 2, selector, 3, affinity=False, taints=True),
    )


def test_host_ports_of_everything_that_runs_on_with_the_pod() -> None:
    containers = [{"name": "c", "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}]}]
    own = {"containerPort": 1, "hostPort": 1, "hostIP": "10.0.0.1"}
    init = [
        {"name": "sidecar", "restartPolicy": "Always", "ports": [own]},
        {"name": "first", "ports": [{"containerPort": 2, "hostPort": 2}]},
    ]
    ports = read(containers=containers, initContainers=init).ports
    assert ports == (HostPort(1, "TCP", "10.0.0.1"), HostPort(8081))
    assert read(containers=containers, hostNetwork=True).ports == (HostPort(80), HostPort(8081))


def test_what_cannot_be_read_is_named_and_never_ignored() -> None:
    view = pod(affinity={"podAffinity": {REQUIRED: "everywhere"}}, topologySpreadConstraints={"a": 1})
    assert [text.split(":")[0] for text in view.unsupported] == ["affinity", "topology spread constraints"]


def test_gates_come_before_whatever_else_is_in_the_way() -> None:
    assert pod(schedulingGates=[{"name": "x"}]).to_task().unsupported == (GATES,)


def test_tasks_of_a_training_job_have_the_labels_and_rules_that_their_pods_will_have() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"drystone.dev/job": "j"}}}
    template = {
        "metadata": {"labels": {"app": "train"}},
        "spec": {"containers": [{"name": "c"}], "affinity": {"podAffinity": {REQUIRED: [term]}}},
    }
    raw = {
        "metadata": {"name": "j", "namespace": "team-b", "uid": "u"},
        "spec": {"roles": [{"name": "worker", "replicas": 2, "template": template}], "priority": "high"},
    }
    _, tasks = trainingjobs.expand(trainingjobs.parse(msgspec.json.encode(raw)), 0)
    assert tasks[0].labels == {"app": "train", "priority": "high", "drystone.dev/job": "j"}
    assert tasks[0].rules == Rules(
        affinity=(PodTerm("zone", (Requirement("drystone.dev/job", "In", ("j",)),), ("team-b",)),)
    )
