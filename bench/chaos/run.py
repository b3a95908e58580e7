"""Rounds of chaos: begin work, break something, heal it, and hold the system to its laws.

Watched all the time: no device promised twice, by pods or by the ledger, no task run twice, no pod refused by a
kubelet. At the end of each round, within a minute after the last part is back: `drystone check` is clean, everything
that can run has run, no accepted job is lost, no service has ended by itself; and with all jobs and pods deleted the
ledger holds nothing. A round that fails prints its seed, what was broken, and the story of the jobs it speaks of.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.chaos.checks import (
    Arena,
    Problem,
    astray,
    broken_laws,
    held,
    not_ready,
    poll_ledger,
    poll_pods,
    replaced,
    unfinished,
)
from bench.chaos.devices import Devices
from bench.chaos.faults import FAULTS, REPLICAS, Ground
from bench.chaos.kubelet import HonestKubelets
from bench.chaos.load import Stream
from bench.chaos.machines import Machines
from bench.chaos.proxy import Proxy, Trouble, leads_through
from bench.chaos.story import stories
from bench.pipeline import prepare
from libs.kube.identity import from_kubeconfig
from libs.store.pages import all_holders
from libs.store.port import LedgerUnavailable
from libs.store.redis import RedisLedger
from tools.fleet import Fleet
from tools.load import Load
from tools.stack import Stack

Report = Callable[[str], None]
NODES: Final = 8
WORK_S: Final = 15.0
HEALED_S: Final = 60.0
#: Within a round a broken gang is refilled or yields, and facts that are no longer told age out.
SETTINGS: Final = {
    "placement": {
        "DRYSTONE_PLACEMENT_GANG_GRACE_S": "10",
        "DRYSTONE_PLACEMENT_GANG_SETTLE_S": "3",
        "DRYSTONE_PLACEMENT_GPU_MAX_AGE_S": "15",
    },
    "metrics-collector": {"DRYSTONE_REFRESH_S": "5", "DRYSTONE_VANISH_S": "20"},
}
#: Stories told of one round; what else is broken has mostly the same cause.
STORIES: Final = 3


@dataclass(slots=True)
class Round:
    """What was found; `faults` were broken, `settled_s` is the time from all healed to all done. `anew`: pods that were
    evicted and made anew."""

    seed: int
    faults: list[str]
    settled_s: float
    emptied_s: float
    accepted: int
    anew: int
    problems: list[Problem]
    stories: list[str] = field(default_factory=list)


async def run(rounds: int, seed: int, *, only: str = "", keep: Path | None = None, report: Report) -> dict[str, Any]:
    """`only` names the faults of every round, joined by " + ". Logs of services stay in `keep`."""
    with tempfile.TemporaryDirectory(prefix="drystone-chaos-") as scratch:
        directory = keep or Path(scratch)
        parts = ("etcd", "apiserver", "kafka", "redis", "controller-manager", "prometheus")
        stack = Stack(directory / "stack", parts=parts)
        info = await asyncio.to_thread(stack.up)
        try:
            async with Load.of(info) as load:
                await prepare(info, load, 0)
                kubelets = HonestKubelets(load.kube)
                machines, devices = Machines(load.kube, kubelets, NODES), Devices(kubelets)
                await machines.make()
                proxy = Proxy(from_kubeconfig(info.kubeconfig), random.Random(seed))
                leads = leads_through(proxy, info, directory)
                async with proxy.serving(), devices.shown(info), Fleet(info, directory / "services") as fleet:
                    ground = Ground(
                        stack,
                        fleet,
                        proxy,
                        machines,
                        random.Random(seed),
                        lambda service: {**leads(service), **SETTINGS.get(service, {})},
                    )
                    try:
                        for service, replicas in REPLICAS.items():
                            for _ in range(replicas):
                                await ground.spawn(service)
                        await fleet.wait_ready(60.0)
                        return await _rounds(Arena(ground, load, kubelets, devices), rounds, seed, only, report)
                    finally:
                        await ground.close()
        finally:
            await asyncio.to_thread(stack.down)


async def _rounds(arena: Arena, rounds: int, seed: int, only: str, report: Report) -> dict[str, Any]:
    ground, kubelets = arena.ground, arena.kubelets
    done: list[Round] = []
    twice: set[Problem] = set()
    watchers = [
        asyncio.create_task(kubelets.run(), name="kubelets"),
        asyncio.create_task(poll_pods(kubelets, twice), name="devices of pods"),
        asyncio.create_task(poll_ledger(ground.info.redis_url, twice), name="devices in the ledger"),
    ]
    try:
        for n in range(rounds):
            rng = random.Random(seed + n)
            ground.rng = rng
            ground.proxy.trouble = Trouble()
            names = only.split(" + ") if only else rng.sample(sorted(FAULTS), rng.choice((1, 1, 2)))
            stream = Stream(arena.load.kube, ground.info.kafka_bootstrap, ground.machines, rng)
            found = await _round(arena, stream, seed + n, names, twice)
            done.append(found)
            report(
                f"round {n + 1}, seed {found.seed}, {' + '.join(names)}: {found.accepted} accepted, "
                f"{found.anew} made anew, done {found.settled_s:.1f} s after healing, "
                f"empty after {found.emptied_s:.1f} s"
                + "".join(f"\n  BROKEN {p.what}" for p in found.problems)
                + "".join(f"\n  {text}" for text in found.stories)
            )
            for task in watchers:
                if task.done():
                    raise RuntimeError(f"the checker of {task.get_name()} ended") from task.exception()
    finally:
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
    return {
        "rounds": len(done),
        "broken": sum(bool(r.problems) for r in done),
        "accepted": sum(r.accepted for r in done),
        "made_anew": sum(r.anew for r in done),
        "nodes_registered_anew": ground.machines.changes["registered anew"],
        "machines_lost": ground.machines.changes["lost"],
        "gangs_released": await asyncio.to_thread(_released, ground.fleet.directory),
        "settled_s_max": round(max((r.settled_s for r in done), default=0.0), 1),
        "emptied_s_max": round(max((r.emptied_s for r in done), default=0.0), 1),
        "each": [
            {
                "seed": r.seed,
                "faults": r.faults,
                "accepted": r.accepted,
                "made_anew": r.anew,
                "settled_s": round(r.settled_s, 1),
                "emptied_s": round(r.emptied_s, 1),
                "problems": [p.what for p in r.problems],
            }
            for r in done
        ],
    }


async def _round(arena: Arena, stream: Stream, seed: int, names: list[str], twice: set[Problem]) -> Round:
    arena.kubelets.on_gone = stream.left
    owner = asyncio.create_task(stream.own(), name="owner")
    try:
        return await _broken_and_healed(arena, stream, seed, names, twice, random.Random(seed))
    finally:
        arena.kubelets.on_gone = lambda _: None
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


async def _broken_and_healed(
    arena: Arena, stream: Stream, seed: int, names: list[str], twice: set[Problem], rng: random.Random
) -> Round:
    ground, kubelets = arena.ground, arena.kubelets
    work = asyncio.create_task(stream.run(f"s{seed}", WORK_S), name="work")

    async def breaks(name: str) -> None:
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        await FAULTS[name](ground)

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(breaks(name), name=name)
    await work
    await stream.open_all_nodes()
    problems = [Problem(text) for text in ground.machines.broken]
    ground.machines.broken.clear()
    healed = time.monotonic()

    def left_s() -> float:
        return max(0.0, healed + HEALED_S - time.monotonic())

    left = await _until(lambda: unfinished(arena, stream), HEALED_S)
    problems += left[:10]
    settled = time.monotonic() - healed
    ledger = RedisLedger(ground.info.redis_url)
    try:
        await ledger.open()
        problems += await replaced(ground)
        problems += await _until(lambda: not_ready(ground), left_s())
        problems += await _until(lambda: astray(arena, ledger), left_s())
        problems += await broken_laws(arena, ledger)
        accepted = len(stream.told.pods) + len(stream.told.jobs)
        told = await _stories(arena, ledger, problems) if problems else []
        await stream.remove_all()
        emptying = time.monotonic()
        leaked = await _until(lambda: held(ledger), HEALED_S)
        emptied = time.monotonic() - emptying
        late = [*leaked[:10], *sorted(twice, key=lambda p: p.what)]
        late += [Problem(f"refused by kubelet: {refused}", job) for job, refused in kubelets.refusals]
        twice.clear()
        kubelets.refusals.clear()
        told += await _stories(arena, ledger, late, but=[p.job for p in problems]) if late else []
    finally:
        await ledger.close()
    kubelets.journal.clear()
    return Round(seed, names, settled, emptied, accepted, stream.made_anew, [*problems, *late], told)


async def _stories(arena: Arena, ledger: RedisLedger, problems: list[Problem], but: Collection[str] = ()) -> list[str]:
    jobs = [p.job for p in problems if p.job and p.job not in but]
    with contextlib.suppress(LedgerUnavailable):
        holders = await all_holders(ledger)
        return await stories(
            list(dict.fromkeys(jobs))[:STORIES],
            journal=arena.kubelets.journal,
            bootstrap=arena.ground.info.kafka_bootstrap,
            holders=holders,
            logs=arena.ground.fleet.directory,
        )
    return ["no stories: the ledger does not answer"]


async def _until(look: Callable[[], Awaitable[list[Problem]]], limit_s: float) -> list[Problem]:
    """What is left after the limit; empty as soon as nothing is."""
    until = time.monotonic() + limit_s
    while True:
        left = await look()
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(0.25)


def _released(logs: Path) -> int:
    """Broken gangs that yielded as a whole, by what placement's replicas have logged."""
    return sum(log.read_bytes().count(b'"broken gang released"') for log in logs.glob("placement-*.log"))
