"""What a round of chaos is held to: looks at API server, ledger and services, past whatever is broken."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NoReturn

from bench.chaos.devices import Devices
from bench.chaos.faults import Ground
from bench.chaos.kubelet import HonestKubelets, done_twice, held_twice
from bench.chaos.load import NAMESPACE, Stream
from libs.domain.jobs import Phase
from libs.domain.resources import WHOLE
from libs.host.laws import violations
from libs.kube import trainingjobs
from libs.kube.grouping import job_key
from libs.kube.writes import list_all
from libs.store.pages import all_holders, all_use
from libs.store.port import LedgerUnavailable, StaleGeneration
from libs.store.redis import RedisLedger
from tools.fleet import tail
from tools.load import Load


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and the key of the job it is about, where there is one."""

    what: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where rounds are run, and who looks."""

    ground: Ground
    load: Load
    kubelets: HonestKubelets
    devices: Devices


# -- all the time -----------------------------------------------------------------------------------------------------


async def poll_pods(kubelets: HonestKubelets, twice: set[Problem]) -> NoReturn:
    """What the API server says: devices by the annotations of pods that hold room, and pods of the same task."""
    while True:
        for place, pods in held_twice(list(kubelets.pods.values())).items():
            names = ", ".join(sorted(f"{p.name} ({p.uid})" for p in pods))
            twice.update(Problem(f"device promised twice: {place} to {names}", job_key(p)) for p in pods[:2])
        for task, pods in done_twice(list(kubelets.pods.values())).items():
            names = ", ".join(sorted(f"{p.name} is {p.phase}" for p in pods))
            twice.add(Problem(f"done twice: {task}: {names}", job_key(pods[0])))
        await asyncio.sleep(0.05)


async def poll_ledger(url: str, twice: set[Problem]) -> NoReturn:
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


# -- when all is healed -----------------------------------------------------------------------------------------------


async def broken_laws(arena: Arena, ledger: RedisLedger) -> list[Problem]:
    """What `drystone check` finds."""
    jobs = {f"{p.namespace}/{p.name}": job_key(p) for p in arena.kubelets.pods.values()}
    return [
        Problem(
            f"{v.law}: {v.about}: {v.detail}", jobs.get(v.about, v.about if v.about in arena.kubelets.journal else "")
        )
        for v in await violations(arena.load.kube, ledger)
    ]


async def unfinished(arena: Arena, stream: Stream) -> list[Problem]:
    """Pods that have not ended, and accepted jobs without an end."""
    left = [
        Problem(
            f"not done: pod {pod.name} is {pod.phase} on {pod.node or 'no node'}{', leaving' * pod.terminating}",
            job_key(pod),
        )
        for pod in arena.kubelets.pods.values()
        if not pod.ended and pod.namespace == NAMESPACE
    ]
    if left or stream.owes:
        return left or [Problem("not done: an evicted pod is to be made anew")]
    listed = await list_all(arena.load.kube, trainingjobs.path(NAMESPACE))
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


async def replaced(ground: Ground) -> list[Problem]:
    """Services that ended though nobody ended them; each is followed by another, as on a cluster."""
    ended = [m for m in ground.fleet.members if m.process.poll() is not None]
    for member in ended:
        ground.fleet.members.remove(member)
        await ground.spawn(member.service)
    return [Problem(f"{m.name} ended by itself with {m.process.returncode}: {tail(m.log, 1)[-2000:]}") for m in ended]


async def not_ready(ground: Ground) -> list[Problem]:
    """Replicas that do not do their part again: of placement, one that has not taken what it owns."""
    answers = await asyncio.gather(*(asyncio.to_thread(member.ready) for member in ground.fleet.members))
    return [
        Problem(f"stuck: {m.name} is not ready")
        for m, ready in zip(ground.fleet.members, answers, strict=True)
        if not ready
    ]


async def held(ledger: RedisLedger) -> list[Problem]:
    try:
        return [Problem(f"leaked: {h.state} {h.id} on {h.node}", h.job) for h in await all_holders(ledger)]
    except LedgerUnavailable as error:
        return [Problem(f"leaked: {error}")]


async def astray(arena: Arena, ledger: RedisLedger) -> list[Problem]:
    """Nodes and facts of devices that are not as they are: ghosts, or not known."""
    machines = arena.ground.machines
    try:
        nodes, _ = await all_use(ledger)
    except LedgerUnavailable as error:
        return [Problem(f"nodes astray: {error}")]
    found = await machines.astray({name for name, use in nodes.items() if not use.gone})
    return [Problem(f"astray: {text}") for text in [*found, *arena.devices.astray()]]
