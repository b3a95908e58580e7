"""Topology and precision as pods, nodes and jobs say them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from libs.domain import keys
from libs.domain.plans import Assignment
from libs.domain.resources import Charge
from libs.domain.topology import LEVELS, Level, Near, Topology, level_of
from libs.kube import boundpods, trainingjobs
from libs.kube.nodes import parse_node
from libs.kube.pods import parse_pod
from tests.unit.libs.kube.objects_for_tests import pod, raw_node

CRD = Path(__file__).parents[4] / "k8s" / "base" / "crds" / "trainingjobs.yaml"
GPU = {"nvidia.com/gpu": "1"}
INDEX = "batch.kubernetes.io/job-completion-index"


def test_a_pod_without_a_word_of_it_wishes_for_nothing() -> None:
    seen = pod(annotations={"team": "red"}, limits=GPU)
    assert (seen.topology, seen.to_task().topology) == (None, None)
    assert (seen.request.gpu.precision, seen.request.gpu.precision_required) == ("", False)


def test_our_annotations_and_kueues_mean_the_same() -> None:
    ours = pod(annotations={keys.TOPOLOGY_REQUIRED: "rack", keys.TOPOLOGY_PREFERRED: "nvidia.com/gpu.clique"})
    theirs = pod(
        annotations={
            "kueue.x-k8s.io/podset-required-topology": "rack",
            "kueue.x-k8s.io/podset-preferred-topology": "nvidia.com/gpu.clique",
        }
    )
    assert ours.topology == theirs.topology == Topology(role=Near("rack", "nvidia.com/gpu.clique"))
    assert ours.to_task().topology == ours.topology
    assert pod(annotations={"kueue.x-k8s.io/podset-unconstrained-topology": "true"}).topology is None


@pytest.mark.parametrize(("where", "number"), [("labels", "17"), ("annotations", "17")])
def test_a_slice_is_a_group_of_consecutive_indices(where: str, number: str) -> None:
    slices = {"kueue.x-k8s.io/podset-slice-required-topology": "rack", "kueue.x-k8s.io/podset-slice-size": "8"}
    said = {"annotations": dict(slices), "labels": {}}
    said[where][INDEX] = number
    assert pod(**said).topology == Topology(group=Near("rack"), number=2)


def test_a_pod_that_does_not_say_which_group_it_is_in_is_refused_with_a_sentence() -> None:
    wish = {keys.GROUP_TOPOLOGY_REQUIRED: "rack"}
    (said,) = pod(annotations={**wish, keys.GROUP_SIZE: "8"}).unsupported
    assert "without an index" in said
    (said,) = pod(annotations={**wish, keys.GROUP_SIZE: "many"}).unsupported
    assert said == "drystone.dev/group-size: 'many' is not a number of pods"


@pytest.mark.parametrize("level", ["two words", "a/b/c", "-", "ü", "x" * 400])
def test_a_level_that_no_label_could_have_is_refused_with_a_sentence(level: str) -> None:
    (said,) = pod(annotations={keys.TOPOLOGY_REQUIRED: level}).unsupported
    assert said.endswith("is neither the name of a level nor the key of a label")


def test_precision_is_part_of_what_is_asked_of_a_gpu() -> None:
    wish = {keys.PRECISION: "FP8", keys.PRECISION_REQUIRED: "true"}
    gpu = pod(annotations=wish, limits=GPU).request.gpu
    assert (gpu.precision, gpu.precision_required, gpu.count) == ("fp8", True, 1)
    assert pod(annotations=wish).request == pod().request, "a pod without a GPU computes on none"


def test_a_precision_that_is_none_is_refused_with_a_sentence() -> None:
    (said,) = pod(annotations={keys.PRECISION: "fp12"}, limits=GPU).unsupported
    assert said == "drystone.dev/precision: 'fp12' is none of fp32, tf32, bf16, fp16, fp8, int8, mixed"
    (said,) = pod(annotations={keys.PRECISION: "bf16", keys.PRECISION_REQUIRED: "yes"}, limits=GPU).unsupported
    assert said == "drystone.dev/precision-required: 'yes' is neither true nor false"


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("0,1,2,3;4,5,6,7", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("4-7; 0-3", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("0,1", ((0, 1),)),
        ("0,1;1,2", ()),
        ("0,1,99", ()),
        ("0-99999", ()),
        ("a,b", ()),
        (";", ()),
        ("3-1", ()),
    ],
)
def test_groups_of_gpus_that_share_nvlink(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    plain = parse_node(raw_node(gpus=8))
    node = parse_node(raw_node(gpus=8, meta={"annotations": {keys.NVLINK_GROUPS: text}}))
    assert node.nvlink == groups
    assert (node.spec == plain.spec) == (not groups), "a decision made against other groups is not as good"


def test_a_label_spells_the_groups_with_what_labels_may_contain() -> None:
    assert parse_node(raw_node(gpus=4, labels={keys.NVLINK_GROUPS: "0-1_2.3"})).nvlink == ((0, 1), (2, 3))


def test_a_job_says_it_for_its_roles_and_its_pods_carry_it() -> None:
    template = {
        "metadata": {"annotations": {keys.PRECISION: "fp32", keys.TOPOLOGY_REQUIRED: "host"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
    }
    spec = {
        "topology": {"required": "zone"},
        "precision": {"kind": "bf16"},
        "roles": [
            {"name": "ps", "replicas": 1, "template": {"spec": template["spec"]}},
            {
                "name": "worker",
                "replicas": 4,
                "template": template,
                "topology": {"required": "rack", "groups": {"size": 2, "required": "nvlink"}},
                "precision": {"kind": "fp8", "required": True},
            },
        ],
    }
    view = trainingjobs.parse(trainingjobs.manifest("team", "run", spec, {}, {}))
    _, tasks = trainingjobs.expand(view, 0)
    zone, rack, nvlink = Near("zone"), Near("rack"), Near("nvlink")
    assert [task.topology for task in tasks] == [
        Topology(zone),
        *(Topology(zone, rack, nvlink, number) for number in (0, 0, 1, 1)),
    ]
    assert [(t.request.gpu.precision, t.request.gpu.precision_required) for t in tasks] == [
        ("bf16", False),
        *[("fp8", True)] * 4,
    ]
    last = tasks[-1]
    made = Assignment("c", last.id, last.name, "n", "s", Charge(), create=True, role="worker", index=3)
    created = msgspec.json.decode(boundpods.pod_manifest(view, made, 0))
    created["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    seen = parse_pod(msgspec.json.encode(created))
    assert (seen.topology, seen.request) == (last.topology, last.request)


def test_a_wish_means_a_level_by_name_then_by_label_and_else_the_label_itself() -> None:
    assert level_of(LEVELS, "rack").label == "topology.kubernetes.io/rack"
    assert level_of(LEVELS, "nvidia.com/gpu.clique").name == "nvlink"
    assert level_of(LEVELS, "example.com/row") == Level("example.com/row", "example.com/row", unique=True)


@pytest.mark.parametrize(
    ("more", "fine"),
    [
        ({"topology": {"required": "zone", "preferred": "rack"}, "precision": {"kind": "mixed"}}, True),
        ({"precision": {"kind": "fp12"}}, False),
        ({"precision": {"required": True}}, False),
        ({"topology": {"required": 3}}, False),
        ({"topology": {"groups": {"size": 2}}}, False),
    ],
)
@pytest.mark.parametrize("where", ["job", "role"])
def test_the_schema_of_job_objects_takes_what_makes_sense_and_no_more(
    where: str, more: dict[str, Any], fine: bool
) -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    _closed(schema)
    role: dict[str, Any] = {"name": "w", "replicas": 1, "template": {}}
    spec: dict[str, Any] = {"roles": [role]}
    (spec if where == "job" else role).update(more)
    if where == "role" and "groups" in more.get("topology", {}):
        fine = True
    valid = jsonschema.Draft202012Validator(schema).is_valid({"spec": spec})
    assert valid == fine
    if valid:
        trainingjobs.parse(trainingjobs.manifest("team", "run", spec, {}, {}))


def _closed(schema: dict[str, Any]) -> None:
    """The API server drops what a schema does not name; here it is an error."""
    if "properties" in schema:
        schema["additionalProperties"] = False
        for inner in schema["properties"].values():
            _closed(inner)
    if "items" in schema:
        _closed(schema["items"])
