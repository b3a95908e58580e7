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

from bench.chaos.faults import FAULTS, SERVICES, Ground
from bench.chaos.kubelet import HonestKubelets, done_twice, held_twice
from bench.chaos.load import NAMESPACE, Stream
from bench.chaos.proxy import Proxy, Trouble, leads_through
from bench.chaos.story import stories
from bench.pipeline import prepare
from libs.domain.jobs import Phase
from libs.domain.resources import WHOLE
from libs.host.laws import violations
from libs.kube import trainingjobs
from libs.kube.grouping import job_key
from libs.kube.identity import from_kubeconfig
from libs.kube.writes import list_all
from libs.store.pages import all_holders
from libs.store.port import LedgerUnavailable, StaleGeneration
from libs.store.redis import RedisLedger
from tools.fleet import Fleet, tail
from tools.load import Load
from tools.stack import Stack

Report = Callable[[str], None]
NODES: Final = 8
WORK_S: Final = 15.0
HEALED_S: Final = 60.0
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


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and the key of the job it is about, where there is one."""

    what: str
    job: str = ""


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
                            await ground.spawn(service)
                    fleet.spawn("metrics-collector", **ground.environment("metrics-collector"))
                    await fleet.wait_ready(60.0)
                    try:
                        return await _rounds(ground, load, rounds, seed, only, report)
                    finally:
                        await ground.close()
        finally:
            await asyncio.to_thread(stack.down)


async def _rounds(ground: Ground, load: Load, rounds: int, seed: int, only: str, report: Report) -> dict[str, Any]:
    nodes = [f"node-{n:05d}" for n in range(NODES)]
    done: list[Round] = []
    kubelets = HonestKubelets(load.kube)
    twice: set[Problem] = set()
    watchers = [
        asyncio.create_task(kubelets.run(), name="kubelets"),
        asyncio.create_task(_poll_pods(kubelets, twice), name="devices of pods"),
        asyncio.create_task(_poll_ledger(ground.info.redis_url, twice), name="devices in the ledger"),
    ]
    try:
        for n in range(rounds):
            rng = random.Random(seed + n)
            ground.rng = rng
            ground.proxy.trouble = Trouble()
            names = only.split(" + ") if only else rng.sample(sorted(FAULTS), rng.choice((1, 1, 2)))
            stream = Stream(load.kube, ground.info.kafka_bootstrap, nodes, rng)
            found = await _round(ground, load, stream, kubelets, seed + n, names, twice)
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


async def _poll_pods(kubelets: HonestKubelets, twice: set[Problem]) -> None:
    """What the API server says: devices by the annotations of pods that hold room, and pods of the same task."""
    while True:
        for place, pods in held_twice(list(kubelets.pods.values())).items():
            names = ", ".join(sorted(f"{p.name} ({p.uid})" for p in pods))
            twice.update(Problem(f"device promised twice: {place} to {names}", job_key(p)) for p in pods[:2])
        for task, pods in done_twice(list(kubelets.pods.values())).items():
            names = ", ".join(sorted(f"{p.name} is {p.phase}" for p in pods))
            twice.add(Problem(f"done twice: {task}: {names}", job_key(pods[0])))
        await asyncio.sleep(0.05)


async def _poll_ledger(url: str, twice: set[Problem]) -> None:
    """What the ledger says: used room of every device, claims and earmarks included."""
    ledger = RedisLedger(url)
    try:
        while True:
            try:
                page = await ledger.dump()
                for use in page.nodes:
                    for index, (milli, _) in enumerate(use.gpus):
                        if milli > WHOLE:
                            twice.add(
                                Problem(f"device promised twice by the ledger: {use.node}/{index}: {milli} milli")
                            )
            except (LedgerUnavailable, StaleGeneration):
                pass  # killed, emptied or being rebuilt: looked at again as soon as it answers
            await asyncio.sleep(0.2)
    finally:
        await ledger.close()


async def _round(
    ground: Ground,
    load: Load,
    stream: Stream,
    kubelets: HonestKubelets,
    seed: int,
    names: list[str],
    twice: set[Problem],
) -> Round:
    rng = random.Random(seed)
    kubelets.on_gone = stream.left
    owner = asyncio.create_task(stream.own(), name="owner")
    try:
        return await _broken_and_healed(ground, load, stream, kubelets, seed, names, twice, rng)
    finally:
        kubelets.on_gone = lambda _: None
        owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)


async def _broken_and_healed(
    ground: Ground,
    load: Load,
    stream: Stream,
    kubelets: HonestKubelets,
    seed: int,
    names: list[str],
    twice: set[Problem],
    rng: random.Random,
) -> Round:
    work = asyncio.create_task(stream.run(f"s{seed}", WORK_S), name="work")

    async def breaks(name: str) -> None:
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        await FAULTS[name](ground)

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(breaks(name), name=name)
    await work
    await stream.open_all_nodes()
    problems: list[Problem] = []
    healed = time.monotonic()
    left = await _until(lambda: _unfinished(load, stream, kubelets), HEALED_S)
    problems += left[:10]
    settled = time.monotonic() - healed
    ledger = RedisLedger(ground.info.redis_url)
    try:
        await ledger.open()
        problems += await _replaced(ground)
        problems += await _until(lambda: _not_ready(ground.fleet), max(0.0, HEALED_S - settled))
        problems += await _broken_laws(load, ledger, kubelets)
        accepted = len(stream.told.pods) + len(stream.told.jobs)
        told = await _stories(ground, kubelets, ledger, problems) if problems else []
        await stream.remove_all()
        emptying = time.monotonic()
        leaked = await _until(lambda: _held(ledger), HEALED_S)
        emptied = time.monotonic() - emptying
        late = [*leaked[:10], *sorted(twice, key=lambda p: p.what)]
        late += [Problem(f"refused by kubelet: {refused}", job) for job, refused in kubelets.refusals]
        twice.clear()
        kubelets.refusals.clear()
        told += await _stories(ground, kubelets, ledger, late, but=[p.job for p in problems]) if late else []
    finally:
        await ledger.close()
    kubelets.journal.clear()
    return Round(seed, names, settled, emptied, accepted, stream.made_anew, [*problems, *late], told)


async def _broken_laws(load: Load, ledger: RedisLedger, kubelets: HonestKubelets) -> list[Problem]:
    """What `drystone check` finds."""
    jobs = {f"{p.namespace}/{p.name}": job_key(p) for p in kubelets.pods.values()}
    return [
        Problem(f"{v.law}: {v.about}: {v.detail}", jobs.get(v.about, v.about if v.about in kubelets.journal else ""))
        for v in await violations(load.kube, ledger)
    ]


async def _stories(
    ground: Ground,
    kubelets: HonestKubelets,
    ledger: RedisLedger,
    problems: list[Problem],
    but: Collection[str] = (),
) -> list[str]:
    jobs = [p.job for p in problems if p.job and p.job not in but]
    with contextlib.suppress(LedgerUnavailable):
        holders = await all_holders(ledger)
        return await stories(
            list(dict.fromkeys(jobs))[:STORIES],
            journal=kubelets.journal,
            bootstrap=ground.info.kafka_bootstrap,
            holders=holders,
            logs=ground.fleet.directory,
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


async def _unfinished(load: Load, stream: Stream, kubelets: HonestKubelets) -> list[Problem]:
    """Pods that have not ended, and accepted jobs without an end."""
    left = [
        Problem(
            f"not done: pod {pod.name} is {pod.phase} on {pod.node or 'no node'}{', leaving' * pod.terminating}",
            job_key(pod),
        )
        for pod in kubelets.pods.values()
        if not pod.ended and pod.namespace == NAMESPACE
    ]
    if left or stream.owes:
        return left or [Problem("not done: an evicted pod is to be made anew")]
    listed = await list_all(load.kube, trainingjobs.path(NAMESPACE))
    objects = {view.name: view for view in map(trainingjobs.parse, listed.items)}
    for id_ in sorted(stream.told.jobs):
        name = trainingjobs.object_name("default", id_)
        view, key = objects.get(name), f"job/{NAMESPACE}/{name}"
        if view is None and id_ not in stream.told.cancelled:
            left.append(Problem(f"lost: job {id_} was accepted and has no object", key))
        elif view is not None and not view.ended:
            left.append(Problem(f"not done: job {id_}: {view.status}", key))
        elif view is not None and view.status.phase is Phase.FAILED:
            left.append(Problem(f"lost: job {id_} failed, and none of its programs did: {view.status}", key))
    return left


async def _replaced(ground: Ground) -> list[Problem]:
    """Services that ended though nobody ended them; each is followed by another, as on a cluster."""
    ended = [m for m in ground.fleet.members if m.process.poll() is not None]
    for member in ended:
        ground.fleet.members.remove(member)
        if member.service in SERVICES:
            await ground.spawn(member.service)
    return [Problem(f"{m.name} ended by itself with {m.process.returncode}: {tail(m.log, 1)[-2000:]}") for m in ended]


async def _not_ready(fleet: Fleet) -> list[Problem]:
    """Replicas that do not do their part again: of placement, one that has not taken what it owns."""
    answers = await asyncio.gather(*(asyncio.to_thread(member.ready) for member in fleet.members))
    return [
        Problem(f"stuck: {m.name} is not ready") for m, ready in zip(fleet.members, answers, strict=True) if not ready
    ]


async def _held(ledger: RedisLedger) -> list[Problem]:
    try:
        return [Problem(f"leaked: {h.state} {h.id} on {h.node}", h.job) for h in await all_holders(ledger)]
    except LedgerUnavailable as error:
        return [Problem(f"leaked: {error}")]
