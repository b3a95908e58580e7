"""What may break in a round: begun at its start, healed before its end. All of it on real processes.

A fault returns when the part is back. Faults know nothing of the work that streams in meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import redis.asyncio
import yaml
from aiokafka.errors import KafkaError

from bench.chaos import messages
from bench.chaos.machines import Machines
from bench.chaos.proxy import Proxy, Trouble
from bench.chaos.relay import Line
from tools.fleet import Fleet, Member
from tools.stack import Stack, StackInfo

#: Two replicas of each.
SERVICES: Final = ("watcher", "placement", "binder", "preemptor")
COLLECTOR: Final = "metrics-collector"
REPLICAS: Final = {**dict.fromkeys(SERVICES, 2), COLLECTOR: 1}
#: A replica that stands still longer than its sessions and leases last.
PAUSE_S: Final = 20.0


#: Longer than a lease lasts and a claim is waited for.
CUT_S: Final = 20.0
#: Longer than a part is away that is killed and started again on a busy machine.
AWAY_S: Final = 60.0


@dataclass(slots=True)
class Ground:
    """What faults work on. Every replica reaches the API server and Redis, the collector Prometheus, by `lines` of its
    own, by its name."""

    stack: Stack
    fleet: Fleet
    proxy: Proxy
    machines: Machines
    rng: random.Random
    environment: Callable[[str], dict[str, str]]
    spawned: int = 0
    lines: dict[str, list[Line]] = field(default_factory=dict)

    @property
    def info(self) -> StackInfo:
        return self.stack.info

    def one_of(self, service: str) -> Member:
        return self.rng.choice([m for m in self.fleet.members if m.service == service])

    async def spawn(self, service: str) -> None:
        self.spawned += 1
        replica = f"r{self.spawned}"
        told = self.environment(service)
        if service == COLLECTOR:
            url = self.info.prometheus_url or ""
            to_prometheus = await _line(url)
            told["DRYSTONE_PROMETHEUS_URL"] = _through(url, to_prometheus.address)
            self.lines[self.fleet.spawn(service, replica, **told).name] = [to_prometheus]
            return
        to_api, to_redis = await _line(self.proxy.url), await _line(self.info.redis_url)
        told["DRYSTONE_KUBECONFIG"] = _led(Path(told["DRYSTONE_KUBECONFIG"]), replica, to_api.address)
        told["DRYSTONE_REDIS_URL"] = _through(self.info.redis_url, to_redis.address)
        member = self.fleet.spawn(service, replica, **told)
        self.lines[member.name] = [to_api, to_redis]

    async def close(self) -> None:
        for line in [line for lines in self.lines.values() for line in lines]:
            await line.close()


async def _line(url: str) -> Line:
    parts = urlsplit(url)
    line = Line(parts.hostname or "127.0.0.1", parts.port or 0)
    await line.open()
    return line


def _through(url: str, address: str) -> str:
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}{address}"))


def _led(kubeconfig: Path, replica: str, address: str) -> str:
    """A copy of the file with the server at `address`."""
    config = yaml.safe_load(kubeconfig.read_text())
    for cluster in config["clusters"]:
        cluster["cluster"]["server"] = f"http://{address}"
    target = kubeconfig.with_suffix(f".{replica}")
    target.write_text(yaml.safe_dump(config))
    target.chmod(0o600)
    return str(target)


Fault = Callable[[Ground], Awaitable[None]]


def killed(service: str) -> Fault:
    async def fault(ground: Ground) -> None:
        ground.fleet.kill(ground.one_of(service))
        await asyncio.sleep(ground.rng.uniform(0.0, 5.0))
        await ground.spawn(service)

    return fault


def paused(service: str) -> Fault:
    async def fault(ground: Ground) -> None:
        member = ground.one_of(service)
        member.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(PAUSE_S)
        finally:
            member.process.send_signal(signal.SIGCONT)

    return fault


def restarted(service: str) -> Fault:
    async def fault(ground: Ground) -> None:
        member = ground.one_of(service)
        member.process.terminate()
        await asyncio.to_thread(member.process.wait, 30)
        ground.fleet.members.remove(member)
        await ground.spawn(service)

    return fault


def cut_off(service: str) -> Fault:
    """One replica reaches neither the API server nor the ledger, or not Prometheus; Kafka, which has addresses of its
    own, it reaches."""

    async def fault(ground: Ground) -> None:
        lines = ground.lines[ground.one_of(service).name]
        for line in lines:
            line.cut()
        try:
            await asyncio.sleep(CUT_S)
        finally:
            for line in lines:
                line.mend()

    return fault


def part_killed(part: str) -> Fault:
    async def fault(ground: Ground) -> None:
        await asyncio.to_thread(ground.stack.kill_part, part)
        await asyncio.sleep(ground.rng.uniform(0.0, 3.0))
        await asyncio.to_thread(ground.stack.start_part, part)

    return fault


def part_stalled(part: str, seconds: float) -> Fault:
    async def fault(ground: Ground) -> None:
        ground.stack.pause_part(part)
        try:
            await asyncio.sleep(seconds)
        finally:
            ground.stack.resume_part(part)

    return fault


async def as_soon_as_it_answers(act: Callable[[], Awaitable[None]], *away: type[Exception]) -> None:
    """`act`, again and again where the part that it works on is away because of another fault."""
    until = asyncio.get_running_loop().time() + AWAY_S
    while True:
        try:
            return await act()
        except away:
            if asyncio.get_running_loop().time() > until:
                raise
            await asyncio.sleep(0.2)


async def redis_emptied(ground: Ground) -> None:
    async def act() -> None:
        client = redis.asyncio.from_url(ground.info.redis_url)
        try:
            await client.flushall()
            await client.function_flush()
        finally:
            await client.aclose()

    await as_soon_as_it_answers(act, redis.asyncio.RedisError)


def troubled(**trouble: float) -> Fault:
    async def fault(ground: Ground) -> None:
        ground.proxy.trouble = Trouble(**trouble)  # type: ignore[arg-type]
        try:
            await asyncio.sleep(12.0)
        finally:
            ground.proxy.trouble = Trouble()

    return fault


async def watches_too_old(ground: Ground) -> None:
    for _ in range(3):
        ground.proxy.close_watches_as_too_old()
        await asyncio.sleep(ground.rng.uniform(1.0, 3.0))


async def messages_said_again(ground: Ground) -> None:
    await as_soon_as_it_answers(lambda: messages.said_again(ground.info.kafka_bootstrap, ground.rng), KafkaError)


async def messages_dropped(ground: Ground) -> None:
    await as_soon_as_it_answers(lambda: messages.dropped(ground.info.kafka_bootstrap, ground.rng), KafkaError)


async def nodes_registered_anew(ground: Ground) -> None:
    """One after the other, three nodes are deleted and come back as others, their pods running on."""
    for _ in range(3):
        await ground.machines.register_anew(ground.rng, 8.0)


async def machine_rebooted(ground: Ground) -> None:
    await ground.machines.reboot(ground.rng)


async def machine_lost(ground: Ground) -> None:
    await ground.machines.lose(ground.rng)


FAULTS: Final[dict[str, Fault]] = {
    **{f"{service} killed": killed(service) for service in REPLICAS},
    **{f"{service} paused": paused(service) for service in REPLICAS},
    **{f"{service} restarted": restarted(service) for service in REPLICAS},
    **{f"{service} cut off": cut_off(service) for service in REPLICAS},
    **{f"{part} killed": part_killed(part) for part in ("kafka", "redis", "apiserver", "prometheus")},
    "etcd stalled": part_stalled("etcd", 6.0),
    "kafka stalled": part_stalled("kafka", 12.0),
    "redis stalled": part_stalled("redis", 5.0),
    "prometheus stalled": part_stalled("prometheus", 20.0),
    "redis emptied": redis_emptied,
    "nodes registered anew": nodes_registered_anew,
    "machine rebooted": machine_rebooted,
    "machine lost": machine_lost,
    "watches too old": watches_too_old,
    "messages again": messages_said_again,
    "messages dropped": messages_dropped,
    "504, half applied": troubled(refuse=504, share=0.4, applied=0.5),
    "500, some applied": troubled(refuse=500, share=0.3, applied=0.2),
    "429": troubled(refuse=429, share=0.5),
    "answers delayed": troubled(delay_s=3.0),
    "answers too late": troubled(late_s=9.0),
    "500, reads too": troubled(refuse=500, share=0.3, reads=0.3),
    "connections cut": troubled(cut=0.3),
}
