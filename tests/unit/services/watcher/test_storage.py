"""Claims, volumes and classes arrive in any order; what is said of a claim is what all of them together mean."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from libs.domain.rules import NodeTerm, Requirement
from libs.domain.volumes import Claim, ClaimState
from services.watcher.decide import Picture
from services.watcher.lists import handlers

BOUND = {"pv.kubernetes.io/bind-completed": "yes"}


def raw(kind: str, name: str, spec: dict[str, Any] | None = None, **more: Any) -> bytes:
    meta = {
        "name": name,
        "namespace": "team" if kind == "claim" else "",
        "resourceVersion": "5",
        **more.pop("meta", {}),
    }
    return msgspec.json.encode({"metadata": meta, **({"spec": spec} if spec is not None else {}), **more})


def disk(zone: str = "z1") -> bytes:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return raw(
        "volume",
        "pv",
        {
            "csi": {"driver": "d", "volumeHandle": "h"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
        meta={"labels": {"topology.kubernetes.io/zone": "z2__z1"}},
    )


def claim(**annotations: str) -> bytes:
    return raw(
        "claim",
        "data",
        {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]},
        meta={"annotations": {**BOUND, **annotations}},
    )


def test_a_claim_and_its_volume_mean_the_same_in_whatever_order_they_come() -> None:
    expected = Claim(
        "team",
        "data",
        ClaimState.BOUND,
        (NodeTerm((Requirement("zone", "In", ("z1",)),)),),
        (("topology.kubernetes.io/zone", ("z1", "z2")),),
        "d",
        "h",
        exclusive=True,
    )
    for order in permutations((("claims", claim()), ("volumes", disk()))):
        picture = Picture(1, {})
        for name, body in order:
            handlers(picture)[name][1]("ADDED", body)
        [fact] = picture.take().facts.values()
        assert fact is not None
        assert fact.claim == expected  # type: ignore[union-attr]


def test_nothing_is_said_twice_and_what_goes_is_said_to_be_gone() -> None:
    picture = Picture(1, {})
    ways = handlers(picture)
    ways["volumes"][0]([disk()])
    ways["claims"][0]([claim()])
    assert picture.take().facts.keys() == {"claim/team/data"}
    ways["claims"][1]("MODIFIED", claim(note="a heartbeat of some controller"))
    ways["volumes"][1]("MODIFIED", disk())
    assert not picture.take()
    ways["volumes"][1]("MODIFIED", disk("z9"))
    assert picture.take().facts.keys() == {"claim/team/data"}
    assert picture.fact_keys() == {"claim/team/data"}
    ways["claims"][0]([])
    assert picture.take().facts == {"claim/team/data": None}
    assert picture.fact_keys() == set()


@pytest.mark.parametrize(
    ("spec", "annotations", "state"),
    [
        ({"volumeName": "pv"}, {}, ClaimState.UNBOUND),  # promised, not done
        ({"volumeName": "gone"}, BOUND, ClaimState.UNBOUND),
        ({"storageClassName": "first"}, {}, ClaimState.FIRST_USE),
        ({"storageClassName": "local"}, {}, ClaimState.STATIC),
        ({"storageClassName": "at-once"}, {}, ClaimState.UNBOUND),
        ({"storageClassName": "unknown"}, {}, ClaimState.UNBOUND),
        ({}, {"volume.beta.kubernetes.io/storage-class": "first"}, ClaimState.FIRST_USE),
    ],
)
def test_what_a_claim_waits_for(spec: dict[str, Any], annotations: dict[str, str], state: ClaimState) -> None:
    picture = Picture(1, {})
    ways = handlers(picture)
    ways["volumes"][0]([disk()])
    ways["claims"][0]([raw("claim", "data", spec, meta={"annotations": annotations})])
    waits = {"volumeBindingMode": "WaitForFirstConsumer"}
    ways["storageclasses"][0](
        [
            raw("class", "first", provisioner="p", **waits),
            raw("class", "local", provisioner="kubernetes.io/no-provisioner", **waits),
            raw("class", "at-once", provisioner="p", volumeBindingMode="Immediate"),
        ]
    )
    fact = picture.fact("claim/team/data")
    assert fact is not None
    assert fact.claim.state is state  # type: ignore[union-attr]


def test_a_claim_whose_node_was_selected_waits_for_that_node_within_what_its_class_allows() -> None:
    picture = Picture(1, {})
    ways = handlers(picture)
    selected = {"volume.kubernetes.io/selected-node": "n7"}
    ways["claims"][0]([raw("claim", "data", {"storageClassName": "first"}, meta={"annotations": selected})])
    zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["z1"]}]}]
    waits = {"provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"}
    here = (Requirement("metadata.name", "In", ("n7",)),)
    for allowed, labels in ((None, ()), (zones, (Requirement("zone", "In", ("z1",)),))):
        ways["storageclasses"][0]([raw("class", "first", **waits, allowedTopologies=allowed)])
        fact = picture.fact("claim/team/data")
        assert fact is not None
        assert fact.claim.node == (NodeTerm(labels, here),)  # type: ignore[union-attr]


def test_limits_of_nodes() -> None:
    picture = Picture(1, {})
    way, event = handlers(picture)["csinodes"]
    drivers = [{"name": "d", "allocatable": {"count": 3}}, {"name": "e"}]
    way([raw("csinode", "n1", {"drivers": drivers}), raw("csinode", "n2", {"drivers": []})])
    assert picture.fact_keys() == {"attach/n1"}
    assert picture.fact("attach/n1").limits == {"d": 3}  # type: ignore[union-attr]
    event("MODIFIED", raw("csinode", "n1", {"drivers": drivers[1:]}))
    assert picture.take().facts == {"attach/n1": None}
