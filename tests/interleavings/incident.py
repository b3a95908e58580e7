"""A scenario as a test: as built it holds, and without each of its rules it breaks its law.

A rule of the ledger is cut out of the library's text, one in Python is replaced.
"""

from __future__ import annotations

import asyncio
import functools
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import fakeredis.commands_mixins.server_mixin as redis_time
import pytest

from libs.store import server as store
from libs.store.library import library
from libs.testkit.pauses_time import LoopClock, run_leaping
from tests.interleavings.laws import BrokenLaw
from tests.interleavings.world import World

Mutation = Callable[[pytest.MonkeyPatch], None]


def lua(*changes: tuple[str, str]) -> Mutation:
    """The ledger's own functions with a rule taken out: texts are replaced that must be there."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        name, code = library()
        for old, new in changes:
            assert old in code, f"no rule of the library reads: {old}"
            code = code.replace(old, new)
        mutant = name[:-8] + "deadbeef"
        code = code.replace(name, mutant)
        patch.setattr(store, "library", lambda: (mutant, code))

    return apply


def python(target: Any, name: str, value: Any) -> Mutation:
    return lambda patch: patch.setattr(target, name, value)


def both(*mutations: Mutation) -> Mutation:
    def apply(patch: pytest.MonkeyPatch) -> None:
        for mutation in mutations:
            mutation(patch)

    return apply


Scenario = Callable[[World], Awaitable[None]]


def run(scenario: Scenario, patch: pytest.MonkeyPatch, *, seed: int = 1, limit_s: float = 900.0) -> list[str]:
    """Run it in leaping time with everything random drawn from `seed`; returns the story."""
    rng = random.Random(seed)
    clock = LoopClock()
    patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128), version=4))
    patch.setattr(random.Random, "seed", _seeding(rng))
    world = World(clock)
    patch.setattr(redis_time, "time", world.redis_clock)

    async def live() -> None:
        async with asyncio.timeout(limit_s):
            async with world.open():
                await scenario(world)
                world.check()

    try:
        run_leaping(live())
    except BrokenLaw as broken:
        raise BrokenLaw(f"{broken} (seed {seed})\n" + "\n".join(world.pauses.journal[-60:])) from None
    return world.pauses.journal


def _seeding(rng: random.Random) -> Callable[..., None]:
    """Generators that were to be seeded by the operating system are seeded by ours."""
    plain = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        plain(self, rng.getrandbits(64) if a is None else a, version)

    return seed


def incident(**mutations: Mutation) -> Callable[[Scenario], Any]:
    """A scenario as a test: as built it holds; without each of the rules named it must break its law."""

    def made(scenario: Scenario) -> Any:
        @pytest.mark.parametrize(
            "without", ["", *mutations], ids=lambda name: f"without {name}" if name else "as built"
        )
        def test(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
            if not without:
                run(scenario, monkeypatch)
                return
            mutations[without](monkeypatch)
            with pytest.raises(BrokenLaw):
                run(scenario, monkeypatch)

        functools.update_wrapper(test, scenario, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        del test.__wrapped__  # type: ignore[attr-defined]
        return test

    return made
