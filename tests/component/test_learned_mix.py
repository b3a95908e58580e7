"""What placement learns of the mix of tasks and of their precisions: counted once, shared by replicas, kept over
restarts."""

from __future__ import annotations

import msgspec

from libs.bus.port import Outgoing
from libs.contracts.events import EventType, LearnedMix, MixCount
from libs.contracts.topics import MIX
from libs.domain import keys
from libs.domain.jobs import partition_of
from libs.engine.core import PlacementEngine
from libs.engine.mix import COUNT, ONE, name_of
from services.placement.app import Placement
from tests.component.placement_scene import PARTITIONS, Scene, binder, placement, running, scene


def mix_of(app: Placement) -> dict[int, float]:
    """GPUs of one task -> part of the mix."""
    engine = app.state.view.engine
    assert isinstance(engine, PlacementEngine)
    found: dict[int, float] = {}
    for share in engine._session.mix.shares():
        found[share.shape.gpus] = found.get(share.shape.gpus, 0.0) + share.weight / ONE
    return {gpus: round(part, 2) for gpus, part in found.items()}


def counted(app: Placement) -> int:
    engine = app.state.view.engine
    assert isinstance(engine, PlacementEngine)
    return engine._session.mix.seen


def declared(app: Placement) -> dict[str, int]:
    """Precision -> milli GPUs asked for by tasks that declare it."""
    engine = app.state.view.engine
    assert isinstance(engine, PlacementEngine)
    return {kind.precision: milli for kind, milli in engine._session.precisions.counts.items()}


async def submit(s: Scene, count: int, gpus: int, prefix: str) -> None:
    for i in range(count):
        await s.hint(s.pod(f"{prefix}-{i}", gpus=gpus))


async def test_a_replica_that_starts_knows_what_was_learned_and_counts_nobody_twice() -> None:
    async with scene() as s:
        await s.facts(*(s.node(f"n{i}") for i in range(2)))
        first = placement(s)
        async with running(first, binder(s)):
            await submit(s, 6, 1, "small")
            await submit(s, 4, 8, "huge")
            await s.until(lambda: counted(first) == 10)
        assert mix_of(first) == {1: 0.6, 8: 0.4}

        second = placement(s)
        async with running(second, binder(s)):
            await s.until(lambda: second.state.active and second.state.waiting)  # those that fit nowhere wait again
            assert mix_of(second) == {1: 0.6, 8: 0.4}
            assert counted(second) == 10


async def test_two_replicas_each_learn_from_their_jobs_and_know_the_sum() -> None:
    async with scene() as s:
        await s.facts(*(s.node(f"n{i}") for i in range(4)))
        one, two = placement(s, placement_mix_s=0.01), placement(s, placement_mix_s=0.01)
        async with running(one, two, binder(s)):
            await s.until(lambda: one.state.active and two.state.active)
            await s.until(lambda: len(one.state.active | two.state.active) == PARTITIONS)
            await submit(s, 20, 1, "p")
            await submit(s, 5, 2, "q")
            await s.until(lambda: counted(one) == 25 and counted(two) == 25)
            assert mix_of(one) == mix_of(two) == {1: 0.8, 2: 0.2}


async def test_precisions_that_one_replica_was_asked_for_are_known_to_all_and_to_who_starts_later() -> None:
    async with scene() as s:
        await s.facts(*(s.node(f"n{i}") for i in range(4)))
        one, two = placement(s, placement_mix_s=0.01), placement(s, placement_mix_s=0.01)
        asked = {"fp8": 12_000, "bf16": 8_000}
        async with running(one, two, binder(s)):
            await s.until(lambda: len(one.state.active | two.state.active) == PARTITIONS)
            await s.until(lambda: bool(one.state.active and two.state.active))
            for i in range(20):
                annotations = {keys.PRECISION: "fp8" if i < 12 else "bf16"}
                await s.hint(s._create_pod(f"p-{i}", 1, annotations, {}))
            await submit(s, 10, 1, "declares-nothing")
            await s.until(lambda: declared(one) == declared(two) == asked)
            for app in (one, two):
                engine = app.state.view.engine
                assert isinstance(engine, PlacementEngine)
                assert engine._session.precisions.tasks == 20, "of 30: the part that declares something"

        third = placement(s)
        async with running(third, binder(s)):
            await s.until(lambda: declared(third) == asked)


async def test_of_a_partition_that_it_owns_a_replica_believes_nobody() -> None:
    async with scene() as s:
        await s.facts(s.node("n"))
        service = placement(s)
        async with running(service, binder(s)):
            pod = s.pod("p", gpus=1)
            await s.hint(pod)
            await s.until(lambda: counted(service) == 1)
            partition = partition_of("pod/default/p", PARTITIONS)
            wrong = LearnedMix(partition, 999, 0.0, (MixCount("x", 0, 8, 0, 0, (), 999 * COUNT),))
            garbage = Outgoing(MIX.name, "7", b"[", EventType.MIX)
            await s.bus.publish(
                [Outgoing(MIX.name, str(partition), msgspec.json.encode(wrong), EventType.MIX), garbage]
            )
            await s.hint(s.pod("q", gpus=1))
            await s.until(lambda: counted(service) == 2)
            assert mix_of(service) == {1: 1.0}


async def test_what_was_learned_outlives_a_new_data_set_of_the_ledger() -> None:
    async with scene() as s:
        await s.facts(s.node("n"))
        service = placement(s)
        async with running(service, binder(s)):
            await submit(s, 3, 1, "p")
            await s.until(lambda: counted(service) == 3)
            service.state.view.restart_uses()
            assert mix_of(service) == {1: 1.0}
            assert counted(service) == 3


async def test_the_verdict_names_the_version_of_what_was_learned() -> None:
    async with scene() as s:
        await s.facts(s.node("n"))
        service = placement(s)
        async with running(service, binder(s)):
            await submit(s, 3, 1, "p")
            await s.until(lambda: counted(service) == 3)
            engine = service.state.view.engine
            assert isinstance(engine, PlacementEngine)
            assert engine._session.fits.policy == f"drystone@{name_of(engine._session.mix.shares())}"
