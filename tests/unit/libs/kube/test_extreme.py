"""Objects that the API server takes and nothing real looks like: read into amounts that can be summed, never raised."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from libs.domain.bounds import MOST_ASKED, MOST_DEVICES, MOST_EXTRA, MOST_OFFERED, MOST_QUOTA
from libs.domain.nodes import Gpu
from libs.engine.rules.match import integer
from libs.kube import rules
from libs.kube.nodes import parse_node
from libs.kube.objects import QueueSpec
from libs.kube.quantities import exact
from libs.kube.queues import tree
from tests.unit.libs.kube.objects_for_tests import pod, raw_node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize("cpu", ["9E", "9223372036854776", "9223372036854775807", "1073741825m"])
def test_a_pod_that_asks_for_more_cpu_than_any_node_has_is_refused_with_a_sentence(cpu: str) -> None:
    view = pod(limits={"cpu": cpu})
    assert view.request.cpu == MOST_ASKED
    assert view.unsupported == ("resource cpu: more than any node has",)


def test_the_sum_over_containers_is_bounded_and_not_only_each_of_them() -> None:
    one = {"name": "c", "resources": {"requests": {"cpu": "600k", "memory": "900Ti", "ephemeral-storage": "800Ti"}}}
    view = pod(containers=[one, one])
    assert (view.request.cpu, view.request.mem) == (MOST_ASKED, MOST_ASKED)
    assert view.request.extra == (("ephemeral-storage", MOST_EXTRA),)
    assert len(view.unsupported) == 3


def test_the_largest_that_is_let_in_is_let_in() -> None:
    view = pod(limits={"cpu": "1073741824m", "memory": "1Pi", "ephemeral-storage": "1Pi", "nvidia.com/gpu": "1024"})
    assert view.unsupported == ()
    assert (view.request.cpu, view.request.mem, view.request.gpu.count) == (MOST_ASKED, MOST_ASKED, MOST_DEVICES)


def test_a_foreign_pod_is_charged_no_more_than_can_be_summed() -> None:
    limits = {"cpu": "9E", "memory": "9E", "nvidia.com/gpu": "9E"}
    charge = pod(limits=limits, schedulerName="default-scheduler", nodeName="n1").charge()
    assert (charge.cpu, charge.mem, charge.blind) == (MOST_ASKED, MOST_ASKED, MOST_DEVICES)


def test_a_pod_of_ours_claims_no_more_of_a_device_than_can_be_summed() -> None:
    said = {"drystone.dev/gpus": "0", "drystone.dev/gpu-memory-mib": "9999999999"}
    charge = pod(annotations=said, limits={"nvidia.com/gpu": "1"}, nodeName="n1").charge([Gpu(0, 81920)])
    assert charge.gpus[0].mib == MOST_ASKED


def test_a_node_of_absurd_size_is_believed_to_have_what_can_be_summed() -> None:
    offers = {"cpu": "9E", "memory": "9E", "pods": "9E", "ephemeral-storage": "9E"}
    node = parse_node(raw_node(allocatable=offers))
    assert (node.cpu, node.mem, node.pods) == (MOST_OFFERED,) * 3
    assert node.extra == {"ephemeral-storage": MOST_EXTRA}


def test_a_node_with_a_quintillion_devices_gives_none_of_them_out_by_index() -> None:
    """To list them would have taken all memory there is."""
    node = parse_node(raw_node(allocatable={"nvidia.com/gpu": "9E"}, labels={"nvidia.com/gpu.memory": "9" * 63}))
    assert len(node.gpus) == MOST_DEVICES
    assert node.gpus[0].mib == MOST_ASKED
    assert node.gpus_closed == "more than 1024 devices"


def test_a_note_of_nvlink_groups_that_names_hundreds_of_millions_of_devices_says_nothing() -> None:
    said = {"drystone.dev/nvlink-groups": ",".join(["0-9999"] * 40_000)}
    assert parse_node(raw_node(gpus=8, meta={"annotations": said})).nvlink == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e30", 2**63),
        ("10e399", 2**63),
        ("-1e30", -(2**63)),
        ("9" * 5_000, 2**63),
        ("9" * 200_000 + "m", 2**63),
        ("0" * 180 + "1", 1),
        ("0" * 300_000 + "Ei", 0),
        ("1." + "0" * 100, 1),
        ("1e-400", Decimal("1e-9")),
        ("0." + "0" * 300_000 + "1", Decimal("1e-9")),
        ("0e99999", 0),
    ],
)
def test_amounts_in_spellings_that_the_api_server_takes(text: str, value: int | Decimal) -> None:
    """A pod may have five thousand digits of CPU, and is stored with them."""
    assert exact(text) == value


@pytest.mark.parametrize("text", ["1" + " " * 300_000, "9" * 300_000 + "x", "1e" + "9" * 300_000, "NaN", "١"])
def test_what_is_no_amount_is_said_in_few_words(text: str) -> None:
    assert [len(problem) < 200 for problem in pod(limits={"cpu": text}).unsupported] == [True]


def test_a_number_of_four_thousand_digits_in_a_template_is_more_than_any_node_has() -> None:
    view = pod(limits={"cpu": 10**4_000, "memory": 1e308})
    assert len(view.unsupported) == 2
    assert (view.request.cpu, view.request.mem) == (MOST_ASKED, MOST_ASKED)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9" * 5_000, None),
        ("-" + "9" * 5_000, None),
        ("0" * 300_000 + "x", None),
        ("0" * 300_000 + "7", 7),
        ("-" + "0" * 50 + "7", -7),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("+0", 0),
        ("", None),
        ("+", None),
        ("+-1", None),
        ("٣", None),
        ("1\n", None),
    ],
)
def test_a_number_of_an_affinity_is_one_of_64_bits_or_none(text: str, value: int | None) -> None:
    assert integer(text) == value


def _terms(**term: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}


MANY = list(map(str, range(9_999)))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"affinity": _terms(matchExpressions=[{"key": f"k{n}", "operator": "Exists"} for n in range(10_000)])},
            f"affinity: 10001 terms and expressions about nodes, at most {rules.MOST_NODE_PARTS} are looked at",
        ),
        (
            {"affinity": _terms(matchExpressions=[{"key": "k", "operator": "In", "values": MANY}])},
            f"affinity: 9999 values, at most {rules.MOST_VALUES} are looked at",
        ),
        (
            {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": f"k{n}"} for n in range(1000)]}}},
            f"affinity: 1000 terms about pods, at most {rules.MOST_POD_TERMS} are looked at",
        ),
        (
            {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "k" * 100_000}]}}},
            "affinity: a topology key that is no key of a label",
        ),
        (
            {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10**30, "preference": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}}]}}},
            "affinity: a weight that is not a number from 1 to 100",
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 10**4000}]},
            "topology spread constraints: maxSkew or minDomains is not a number from 1 to 2147483647",
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "minDomains": -(10**20)}]},
            "topology spread constraints: maxSkew or minDomains is not a number from 1 to 2147483647",
        ),
        (
            {"hostNetwork": True, "containers": [{"name": "c", "ports": [{"containerPort": 10**30}]}]},
            "host port: not a number from 1 to 65535",
        ),
        (
            {"tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(5_000)]},
            "5000 tolerations, at most 256 are looked at",
        ),
        (
            {"nodeSelector": {f"k{n}": "v" for n in range(5_000)}},
            "5000 entries of the node selector, at most 256 are looked at",
        ),
    ],
)  # fmt: skip
def test_rules_that_would_take_long_or_mean_nothing_are_named(spec: dict[str, Any], said: str) -> None:
    view = pod(**spec)
    assert said in view.unsupported
    told = msgspec.json.encode(view.to_task().rules)
    assert len(told) < 20_000


def test_a_running_pod_with_a_thousand_anti_affinities_still_keeps_others_away_by_the_first() -> None:
    terms = [{"topologyKey": "host", "labelSelector": {"matchLabels": {"n": str(n)}}} for n in range(1_000)]
    view = pod(affinity={"podAntiAffinity": {REQUIRED: terms}}, nodeName="n1")
    assert view.rules is not None
    assert len(view.rules.anti_affinity) == rules.MOST_POD_TERMS


def test_ten_thousand_models_are_not_held_against_every_node() -> None:
    models = ",".join(f"model-{n}" for n in range(10_000))
    view = pod(annotations={"drystone.dev/gpu-models": models}, limits={"nvidia.com/gpu": "1"})
    assert view.unsupported == ("drystone.dev/gpu-models: 10000 models, at most 64 can be named",)


def test_a_queue_of_absurd_size_has_amounts_that_can_be_summed() -> None:
    said = {"nvidia.com/gpu": "9E", "cpu": "9E", "memory": "9223372036854775807", "nvidia.com/gpu:A100": "9E"}
    spec = QueueSpec(limits=said, deserved=said, min_run_seconds=2**62, evict_notice_seconds=2**62)
    queue = tree({"q": (spec, "1")})["q"].queue
    assert (queue.gpu_milli, queue.cpu, queue.models) == (MOST_QUOTA, MOST_QUOTA, {"A100": MOST_QUOTA})
    assert queue.mem is not None
    assert queue.mem <= MOST_QUOTA
    assert queue.min_run_s == queue.notice_s == 10**9
