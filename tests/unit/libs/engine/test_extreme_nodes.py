"""Nodes and pods at the bounds of what is let in: the engine's vectors and tables hold them."""

from __future__ import annotations

import warnings

import pytest

from libs.domain.bounds import MOST_ASKED, MOST_DEVICES, MOST_EXTRA, MOST_OFFERED
from libs.domain.resources import GpuRequest, Request
from libs.domain.verdicts import Kind
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.engine.mix import Share, shape_of
from libs.engine.policies import POLICIES
from libs.engine.policies.kinds import TOP, Kinds
from libs.engine.snapshot import Snapshot
from libs.testkit.builders import cluster, gang, node, pod

LARGEST = {"cpu": MOST_OFFERED, "mem": MOST_OFFERED, "pods": MOST_OFFERED, "mib": MOST_ASKED,
           "extra": {"ephemeral-storage": MOST_EXTRA}}  # fmt: skip


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_places_the_largest_pods_on_the_largest_nodes(policy: str) -> None:
    facts = cluster()
    for n in range(5):
        facts.node(f"n{n}", gpus=8, **LARGEST)
    facts.node("plain")
    engine = facts.into(PlacementEngine(EngineConfig({policy: 1}, consolidate=True)))
    jobs = [
        pod("cpu", cpu=MOST_ASKED, mem=MOST_ASKED),
        pod("gpus", gpus=8, cpu=MOST_ASKED, mem=MOST_ASKED),
        pod("share", share=500, cpu=MOST_ASKED),
        pod("memory", mib=MOST_ASKED),
        gang("gang", 16, gpus=1, cpu=MOST_ASKED),
        gang("many", 100, cpu=MOST_ASKED),
        pod("whole", gpus=MOST_DEVICES),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            decisions = {d.job: d for d in engine.decide(jobs, 1e9)}
            for d in decisions.values():
                if not d.placements:
                    engine.reserve(next(job for job in jobs if job.head.key == d.job), 1e9)
            engine.settle()
    placed = {key.rsplit("/", 1)[-1] for key, d in decisions.items() if d.placements}
    assert placed >= {"cpu", "share", "memory", "gang", "many"}
    assert decisions["pod/team/whole"].verdict.kind is Kind.NEVER
    room = engine.free_room()
    assert room["n0"][:2] == (MOST_OFFERED, MOST_OFFERED)


def test_tables_are_no_longer_for_a_node_of_sixty_million_cores() -> None:
    """They have an entry per milli core: it was 512 GiB that were asked for."""
    snapshot = Snapshot()
    snapshot.node_seen(node("n", cpu=MOST_OFFERED))
    requests = [Request(cpu=cpu, gpu=GpuRequest(count=count)) for cpu in (1000, MOST_ASKED) for count in (1, 2)]
    shares = [Share(shape_of(request), 1) for request in requests]
    for places in (False, True):
        kinds = Kinds(snapshot, [share.shape for share in shares], places)
        assert len(kinds.reached) <= TOP + 2
