"""Rounds of chaos: begin work, break something, heal it, and hold the system to its laws.

Watched all the time: no device promised twice, no pod refused by a kubelet. At the end of each round, within a minute
after the last part is back: `drystone check` is clean, everything that can run has run, no accepted job is lost; and
with all jobs and pods deleted the ledger holds nothing. A round that fails prints its seed, what was broken and the
story of what is left.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.chaos.faults import FAULTS, SERVICES, Ground
from bench.chaos.kubelet import HonestKubelets, held_twice
from bench.chaos.load import NAMESPACE, Stream
from bench.chaos.proxy import Proxy, Trouble, leads_through
from bench.pipeline import prepare
from libs.domain.jobs import Phase
from libs.host.laws import violations
from libs.kube import trainingjobs
from libs.kube.identity import from_kubeconfig
from libs.kube.pods import PodView
from libs.kube.writes import list_all
from libs.store.port import LedgerUnavailable
from libs.store.redis import RedisLedger
from tools.fleet import Fleet
from tools.load import Load
from tools.stack import Stack

Report = Callable[[str], None]
NODES: Final = 8
WORK_S: Final = 15.0
HEALED_S: Final = 60.0


@dataclass(slots=True)
class Round:
    """What was found; `faults` were broken, `settled_s` is the time from all healed to all done."""

    seed: int
    faults: list[str]
    settled_s: float
    emptied_s: float
    accepted: int
    problems: list[str]


async def run(rounds: int, seed: int, *, only: str = "", keep: Path | None = None, report: Report) -> dict[str, Any]:
    """`only` names the faults of every round, joined by " + ". Logs of services stay in `keep`."""
    with tempfile.TemporaryDirectory(prefix="drystone-chaos-") as scratch:
        directory = keep or Path(scratch)
        parts = ("etcd", "apiserver", "kafka", "redis", "controller-manager", "prometheus")
        stack = Stack(directory / "stack", parts=parts)
        info = await asyncio.to_thread(stack.up)
        try:
            async with Load.of(info) as load:
                await prepare(info, load, NODES)
                proxy = Proxy(from_kubeconfig(info.kubeconfig), random.Random(seed))
                async with proxy.serving(), Fleet(info, directory / "services") as fleet:
                    ground = Ground(stack, fleet, proxy, random.Random(seed), leads_through(proxy, info, directory))
                    for service in SERVICES:
                        for _ in range(2):
                            ground.spawn(service)
                    fleet.spawn("metrics-collector", **ground.environment("metrics-collector"))
                    await fleet.wait_ready(60.0)
                    return await _rounds(ground, load, rounds, seed, only, report)
        finally:
            await asyncio.to_thread(stack.down)


async def _rounds(ground: Ground, load: Load, rounds: int, seed: int, only: str, report: Report) -> dict[str, Any]:
    nodes = [f"node-{n:05d}" for n in range(NODES)]
    done: list[Round] = []
    kubelets = HonestKubelets(load.kube)
    twice: set[str] = set()
    watching = asyncio.create_task(kubelets.run(), name="kubelets")
    polling = asyncio.create_task(_poll(kubelets, twice), name="devices")
    try:
        for n in range(rounds):
            rng = random.Random(seed + n)
            ground.rng = rng
            ground.proxy.trouble = Trouble()
            names = only.split(" + ") if only else rng.sample(sorted(FAULTS), rng.choice((1, 1, 2)))
            stream = Stream(load.kube, ground.info.kafka_bootstrap, nodes, rng)
            found = await _round(ground, load, stream, kubelets, seed + n, names)
            found.problems += sorted(twice) + [f"refused by kubelet: {r}" for r in kubelets.refusals]
            twice.clear()
            kubelets.refusals.clear()
            done.append(found)
            report(
                f"round {n + 1}, seed {found.seed}, {' + '.join(names)}: {found.accepted} accepted, "
                f"done {found.settled_s:.1f} s after healing" + "".join(f"\n  BROKEN {p}" for p in found.problems)
            )
            if watching.done() or polling.done():
                raise RuntimeError("the checker ended") from (watching.exception() if watching.done() else None)
    finally:
        for task in (watching, polling):
            task.cancel()
        await asyncio.gather(watching, polling, return_exceptions=True)
    return {
        "rounds": len(done),
        "broken": sum(bool(r.problems) for r in done),
        "accepted": sum(r.accepted for r in done),
        "settled_s_max": round(max((r.settled_s for r in done), default=0.0), 1),
        "emptied_s_max": round(max((r.emptied_s for r in done), default=0.0), 1),
        "each": [
            {"seed": r.seed, "faults": r.faults, "settled_s": round(r.settled_s, 1), "problems": r.problems}
            for r in done
        ],
    }


async def _poll(kubelets: HonestKubelets, twice: set[str]) -> None:
    while True:
        twice |= {f"device promised twice: {what}" for what in held_twice(list(kubelets.pods.values()))}
        await asyncio.sleep(0.05)


async def _round(
    ground: Ground, load: Load, stream: Stream, kubelets: HonestKubelets, seed: int, names: list[str]
) -> Round:
    rng = random.Random(seed)
    work = asyncio.create_task(stream.run(f"s{seed}", WORK_S), name="work")

    async def breaks(name: str) -> None:
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        await FAULTS[name](ground)

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(breaks(name), name=name)
    await work
    await stream.open_all_nodes()
    problems: list[str] = []
    healed = time.monotonic()
    left = await _until(lambda: _unfinished(load, stream, kubelets), HEALED_S)
    problems += [f"not done: {what}" for what in left[:10]]
    settled = time.monotonic() - healed
    ledger = RedisLedger(ground.info.redis_url)
    try:
        await ledger.open()
        problems += [f"{v.law}: {v.about}: {v.detail}" for v in await violations(load.kube, ledger)]
        accepted = len(stream.told.pods) + len(stream.told.jobs)
        await stream.remove_all()
        emptying = time.monotonic()
        held = await _until(lambda: _held(ledger), HEALED_S)
        problems += [f"leaked: {what}" for what in held[:10]]
    finally:
        await ledger.close()
    return Round(seed, names, settled, time.monotonic() - emptying, accepted, problems)


async def _until(look: Callable[[], Any], limit_s: float) -> list[str]:
    """What is left after the limit; empty as soon as nothing is."""
    until = time.monotonic() + limit_s
    while True:
        left: list[str] = await look()
        if not left or time.monotonic() > until:
            return left
        await asyncio.sleep(0.25)


async def _unfinished(load: Load, stream: Stream, kubelets: HonestKubelets) -> list[str]:
    """Pods that have not ended, and accepted jobs without an end."""
    left = [_story(pod) for pod in kubelets.pods.values() if not pod.ended and pod.namespace == NAMESPACE]
    if left:
        return left
    listed = await list_all(load.kube, trainingjobs.path(NAMESPACE))
    objects = {view.name: view for view in map(trainingjobs.parse, listed.items)}
    for id_ in sorted(stream.told.jobs):
        view = objects.get(trainingjobs.object_name("default", id_))
        if view is None and id_ not in stream.told.cancelled:
            left.append(f"job {id_} was accepted and has no object")
        elif view is not None and not view.ended:
            left.append(f"job {id_}: {view.status}")
        elif view is not None and view.status.phase is Phase.FAILED:
            left.append(f"job {id_} failed, and none of its programs did: {view.status}")
    return left


def _story(pod: PodView) -> str:
    return f"pod {pod.name} {pod.phase} node={pod.node} terminating={pod.terminating} job={pod.annotations}"


async def _held(ledger: RedisLedger) -> list[str]:
    try:
        return [f"{h.state} {h.id} on {h.node}" async for h in ledger.all_holders()]
    except LedgerUnavailable as error:
        return [str(error)]
