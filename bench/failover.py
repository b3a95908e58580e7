"""How long binding stands still when a part fails: each part in turn, under a steady stream of single pods.

Two replicas of watcher, placement and binder, one of preemptor and metrics-collector, one Kafka, Redis, API server and
etcd. Measured from the fault, and where the part must return, from its return too: until new pods are bound, until no
pod waits too long any more, the longest gap between bindings. All the time no device may have two owners.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis.asyncio
from aiokafka.admin import AIOKafkaAdminClient

from bench.pipeline import prepare
from bench.steady import Recovery, Steady, recovery, spread
from libs.bus.admin import ensure_topics
from libs.bus.settings import KafkaSettings
from libs.contracts.topics import TASKS
from tools.fleet import Fleet, Member
from tools.load import Load, LoadError
from tools.stack import Stack

Report = Callable[[str], None]

NODES: Final = 100
RATE: Final = 10.0
#: A pod that waits longer than this counts as late: several times what the slowest waits on a quiet system.
LATE_S: Final = 2.0
#: Watched at least so long: a dead member of a group shows only after its session, and a lease after its duration.
WATCH_S: Final = 18.0
QUIET_S: Final = 3.0
LIMIT_S: Final = 120.0
#: All of them have room at once.
MOST_UNBOUND: Final = 600
PAUSE_S: Final = 20.0
STALL_S: Final = 5.0
GONE_S: Final = 2.0
REPLICAS: Final = {"watcher": 2, "placement": 2, "binder": 2, "preemptor": 1, "metrics-collector": 1}
PARTS: Final = ("etcd", "apiserver", "kafka", "redis", "prometheus")


@dataclass(slots=True)
class Ground:
    stack: Stack
    fleet: Fleet
    usual: Mapping[str, int] = field(default_factory=lambda: REPLICAS)
    #: Settings of one service's replicas.
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Where the services' files are; None: here.
    source: Path | None = None
    spawned: int = 0
    #: Of a service, where a scenario wants another number than usual.
    replicas: dict[str, int] = field(default_factory=dict)

    def of(self, service: str) -> list[Member]:
        return [m for m in self.fleet.members if m.service == service]

    def leads(self, member: Member) -> bool:
        return "\ndrystone_watcher_leader 1.0" in member.metrics()

    def leader(self) -> Member:
        return next(m for m in self.of("watcher") if self.leads(m))

    def standby(self) -> Member:
        return next(m for m in self.of("watcher") if not self.leads(m))

    def spawn(self, service: str) -> None:
        self.spawned += 1
        environment = dict(self.extra.get(service, {}))
        if "DRYSTONE_SHARDS" in environment:
            used = {m.replica.partition("s")[2] for m in self.of(service)}
            shard = next(n for n in map(str, range(int(environment["DRYSTONE_SHARDS"]))) if n not in used)
            environment["DRYSTONE_SHARD"] = shard
        else:
            shard = ""
        if self.source is not None:
            # Before anything that is installed, and not after the folder that we run in.
            environment |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(self.source)}
        self.fleet.spawn(service, f"r{self.spawned}" + (f"s{shard}" if shard else ""), **environment)

    async def as_many_as_wanted(self) -> None:
        """Spawn what is missing, end what is too many, wait until all are ready and one leads."""
        for service, usual in self.usual.items():
            wanted, there = self.replicas.get(service, usual), self.of(service)
            for _ in range(wanted - len(there)):
                self.spawn(service)
            for member in there[wanted:]:
                await ended(self.fleet, member)
        await self.fleet.wait_ready(60.0)
        for _ in range(300):
            if any(self.leads(m) for m in self.of("watcher")):
                return
            await asyncio.sleep(0.1)


async def ended(fleet: Fleet, member: Member) -> float:
    """Ask it to end and wait for it; seconds that took."""
    began = time.monotonic()
    member.process.terminate()
    await asyncio.to_thread(member.process.wait, 40)
    fleet.members.remove(member)
    return time.monotonic() - began


#: Does it; returns when the part was back (monotonic), None where nothing has to return.
Fault = Callable[[Ground], Awaitable[float | None]]


def killed(who: Callable[[Ground], Member]) -> Fault:
    async def fault(ground: Ground) -> None:
        ground.fleet.kill(who(ground))

    return fault


def killed_and_started(service: str) -> Fault:
    """As Kubernetes restarts a container that ended: at once."""

    async def fault(ground: Ground) -> float:
        ground.fleet.kill(ground.of(service)[0])
        ground.spawn(service)
        return time.monotonic()

    return fault


def part_killed(part: str) -> Fault:
    async def fault(ground: Ground) -> float:
        await asyncio.to_thread(ground.stack.kill_part, part)
        await asyncio.to_thread(ground.stack.start_part, part)
        return time.monotonic()

    return fault


async def redis_emptied(ground: Ground) -> None:
    client = redis.asyncio.from_url(ground.stack.info.redis_url)
    try:
        await client.flushall()
        await client.function_flush()  # as a new server is
    finally:
        await client.aclose()


async def redis_full(ground: Ground) -> float:
    """It refuses all writes for a while, and answers everything else."""
    client = redis.asyncio.from_url(ground.stack.info.redis_url)
    try:
        await client.config_set("maxmemory", "1mb")
        await asyncio.sleep(STALL_S)
    finally:
        await client.config_set("maxmemory", "0")
        await client.aclose()
    return time.monotonic()


async def topic_made_anew(ground: Ground) -> float:
    """The one that pods to be placed are told on, and all that is in it."""
    settings = KafkaSettings(ground.stack.info.kafka_bootstrap)
    admin = AIOKafkaAdminClient(**settings.client())
    await admin.start()
    try:
        await admin.delete_topics([TASKS.name])
    finally:
        await admin.close()
    await asyncio.sleep(GONE_S)
    await ensure_topics(settings, create=True, topics=[TASKS], replicas=1)
    return time.monotonic()


async def etcd_stalled(ground: Ground) -> float:
    ground.stack.pause_part("etcd")
    try:
        await asyncio.sleep(STALL_S)
    finally:
        ground.stack.resume_part("etcd")
    return time.monotonic()


async def leader_stopped(ground: Ground) -> None:
    """It stands still for longer than its lease, then goes on and believes at first that it leads."""
    member = ground.leader()
    member.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_S)
    finally:
        member.process.send_signal(signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`limit_s`: within it no pod may be late any more, counted from the part's return, or from the fault where nothing
    has to return. `why`: what that limit is made of."""

    fault: Fault
    limit_s: float
    why: str
    replicas: dict[str, int] = field(default_factory=dict)


_GROUP = "Kafka session 10 s, heartbeat 1 s, take-over 1 s"
_LEASE = "lease 6 s since it was seen renewed, two looks of 1.2 s, lists 1 s"
_REBUILD = "longest write 5 s, lists, loading"

SCENARIOS: Final[dict[str, Scenario]] = {
    "placement, one of two killed": Scenario(killed(lambda g: g.of("placement")[0]), 12.0, _GROUP),
    "the only binder killed": Scenario(killed_and_started("binder"), 12.0, _GROUP, {"binder": 1}),
    "binder, one of two killed": Scenario(killed(lambda g: g.of("binder")[0]), 12.0, _GROUP),
    "preemptor killed": Scenario(killed_and_started("preemptor"), 0.0, "binds nothing"),
    "watcher, leader killed": Scenario(killed(Ground.leader), 9.4, _LEASE),
    "watcher, standby killed": Scenario(killed(Ground.standby), 0.0, "leads nothing"),
    "watcher, leader stopped 20 s": Scenario(leader_stopped, 9.4, _LEASE),
    "metrics-collector killed": Scenario(killed_and_started("metrics-collector"), 0.0, "facts age, no more"),
    "Kafka killed and restarted": Scenario(part_killed("kafka"), 13.0, "session 10 s, heartbeat 1 s, connecting 2 s"),
    "Redis killed and restarted": Scenario(part_killed("redis"), 15.0, _REBUILD),
    "Redis emptied": Scenario(redis_emptied, 15.0, _REBUILD),
    "API server killed and restarted": Scenario(part_killed("apiserver"), 9.4, _LEASE),
    "etcd stalled 5 s": Scenario(etcd_stalled, 9.4, _LEASE),
    "etcd killed and restarted": Scenario(part_killed("etcd"), 9.4, _LEASE),
    "Redis refuses writes for 5 s": Scenario(redis_full, 9.4, _LEASE),
    "drystone.tasks deleted and made anew": Scenario(
        topic_made_anew, 17.0, "topics looked up every 5 s, session 10 s, heartbeat 1 s, take-over 1 s"
    ),
    "Prometheus killed and restarted": Scenario(part_killed("prometheus"), 0.0, "facts age, no more"),
}


@dataclass(slots=True)
class Row:
    """Repetitions of one scenario. `back`: when the part was back after the fault, in seconds."""

    measured: list[Recovery] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def summary(self, scenario: Scenario) -> dict[str, Any]:
        healed = [r.healed_s for r in self.measured]
        counted = [max(0.0, h - b) for h, b in zip(healed, self.back, strict=True)] if self.back else healed
        return {
            "limit_s": scenario.limit_s,
            "limit": scenario.why,
            "healed_s": spread(healed),
            **({"back_s": spread(self.back), "healed_after_back_s": spread(counted)} if self.back else {}),
            "first_s": spread([r.first_s for r in self.measured]),
            "gap_s": spread([r.gap_s for r in self.measured]),
            "wait_s": spread([r.wait_s for r in self.measured]),
            "within": max(counted) <= scenario.limit_s,
            "lost": sum(r.lost for r in self.measured),
            "problems": self.problems,
            "each": [
                {**r.summary(), **({"back_s": round(self.back[n], 2)} if self.back else {})}
                for n, r in enumerate(self.measured)
            ],
        }


async def run(
    only: Collection[str], repeats: int, *, rate: float = RATE, keep: Path | None = None, report: Report
) -> dict[str, Any]:
    """`only`: names of scenarios, all where empty. Logs of services stay in `keep`."""
    chosen = {name: s for name, s in SCENARIOS.items() if not only or name in only}
    rows: dict[str, Row] = {}
    async with grounded(keep) as (ground, load):
        stream = Steady(load.kube, rate, most=MOST_UNBOUND)
        async with asyncio.TaskGroup() as tasks:
            streaming = tasks.create_task(stream.run(), name="stream")
            for name, scenario in chosen.items():
                row = rows[name] = Row()
                ground.replicas = scenario.replicas
                for n in range(repeats):
                    await _once(ground, stream, scenario, row)
                    last = row.measured[-1]
                    report(f"{name}, {n + 1} of {repeats}: {last.summary()} back {row.back[-1:] or '-'}")
                    row.problems += stream.owners.twice
                    stream.owners.twice.clear()
            streaming.cancel()
    return {
        "rate": rate,
        "nodes": NODES,
        "repeats": repeats,
        "late_s": LATE_S,
        "faults": {name: row.summary(chosen[name]) for name, row in rows.items()},
    }


@asynccontextmanager
async def grounded(
    keep: Path | None,
    *,
    nodes: int = NODES,
    replicas: Mapping[str, int] = REPLICAS,
    extra: Mapping[str, Mapping[str, str]] | None = None,
    source: Path | None = None,
) -> AsyncIterator[tuple[Ground, Load]]:
    """Real parts, and the usual replicas of all services, ready. `source`: run from the files there."""
    with tempfile.TemporaryDirectory(prefix="drystone-bench-") as scratch:
        directory = keep or Path(scratch)
        stack = Stack(directory / "stack", parts=PARTS)
        info = await asyncio.to_thread(stack.up)
        try:
            async with Load.of(info) as load:
                await prepare(info, load, nodes)
                async with Fleet(info, directory / "services") as fleet:
                    ground = Ground(stack, fleet, replicas, extra or {}, source)
                    await ground.as_many_as_wanted()
                    yield ground, load
        finally:
            await asyncio.to_thread(stack.down)


async def _once(ground: Ground, stream: Steady, scenario: Scenario, row: Row) -> None:
    await ground.as_many_as_wanted()
    if not await stream.quiet(QUIET_S, LATE_S, LIMIT_S):
        raise LoadError(f"no quiet time before the fault; {stream.unbound} pods wait: what holds them up is no fault")
    stream.forget(time.monotonic() - 10.0)
    fault = time.monotonic()
    back = await scenario.fault(ground)
    left = WATCH_S - (time.monotonic() - (back or fault))
    await asyncio.sleep(max(0.0, left))
    if not await stream.quiet(QUIET_S, LATE_S, LIMIT_S):
        row.problems.append(f"{stream.unbound} pods wait {LIMIT_S:.0f} s after the fault")
    row.measured.append(recovery(list(stream.pods.values()), fault, time.monotonic(), LATE_S))
    if back is not None:
        row.back.append(back - fault)
