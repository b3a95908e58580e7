"""Opening and closing what a service is handed: bus, ledger, API server.

Brokers and servers may start after us: opening is tried again, with backoff, until `start_s` is over. What waiting
cannot cure (a topic of another shape, a Redis that evicts keys, an unreadable kubeconfig) is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from libs.bus.kafka import KafkaBus
from libs.bus.port import Bus, BusMisconfigured, BusUnavailable
from libs.bus.settings import HEARTBEAT_S, KafkaSettings
from libs.contracts.topics import with_job_topics
from libs.host.parts import Parts, not_opened
from libs.host.probes import Ask, api_server
from libs.host.settings import CommonSettings, WrongSettings
from libs.kube.client import KubeClient
from libs.kube.errors import BadConfiguration
from libs.kube.port import Kube
from libs.runtime.backoff import Backoff
from libs.runtime.tasks import comes
from libs.store.port import Ledger, LedgerMisconfigured, LedgerUnavailable
from libs.store.redis import RedisLedger

log = structlog.get_logger()


class PartUnavailable(Exception):
    """One sentence: what could not be reached within the start's limit."""


@dataclass(slots=True)
class Opened:
    parts: Parts
    bus: KafkaBus | None = None
    closers: list[tuple[str, Callable[[], Awaitable[object]]]] = field(default_factory=list)
    #: How each server is asked whether it answers.
    asks: dict[str, Ask] = field(default_factory=dict)

    def healthy(self) -> dict[str, str]:
        """What of the parts is broken, by name; empty if all is well."""
        if self.bus is not None and not self.bus.healthy:
            said = "; ".join(getattr(self.bus, "faults", ()))
            return {"bus": said or "a consumer or the producer is stuck, or the broker is away"}
        return {}

    @property
    def left_s(self) -> float:
        """For how long somebody here has not read on, although the broker is there."""
        return self.bus.left_s if self.bus is not None else 0.0


def kafka_settings(name: str, settings: CommonSettings) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=settings.kafka_bootstrap,
        client_id=f"drystone-{name}-{settings.replica_id}",
        source=f"drystone/{name}/{settings.replica_id}",
        security=settings.kafka_security,
        sasl_mechanism=settings.kafka_sasl_mechanism,
        sasl_username=settings.kafka_sasl_username,
        sasl_password=settings.kafka_sasl_password.get_secret_value(),
        tls=settings.kafka_tls(),
        static_member=settings.replica_id if settings.kafka_static_members else "",
        session_s=settings.kafka_session_s,
        heartbeat_s=min(HEARTBEAT_S, 0.3 * settings.kafka_session_s),
    )


def redis_ledger(settings: CommonSettings) -> RedisLedger:
    connection: dict[str, Any] = {}
    if settings.redis_username:
        connection["username"] = settings.redis_username
    if settings.redis_password.get_secret_value():
        connection["password"] = settings.redis_password.get_secret_value()
    for argument, file in (
        ("ssl_ca_certs", settings.redis_ca_file),
        ("ssl_certfile", settings.redis_cert_file),
        ("ssl_keyfile", settings.redis_key_file),
    ):
        if file is not None:
            connection[argument] = str(file)
    return RedisLedger(settings.redis_url, **connection)


async def open_parts(name: str, settings: CommonSettings, needs: Collection[str], stop: asyncio.Event) -> Opened | None:
    """All parts named in `needs`, open; None when asked to stop before they were there."""
    closers: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    asks: dict[str, Ask] = {}
    try:
        kube: Kube = not_opened("kube", name)
        if "kube" in needs:
            kube = _kube(settings)
            asks["API server"] = api_server(kube)
            closers.append(("kube", kube.close))
        ledger: Ledger = not_opened("ledger", name)
        if "ledger" in needs:
            ledger = held = redis_ledger(settings)
            asks["ledger"] = held.answers
            closers.append(("ledger", ledger.close))
            if not await _patiently("Redis", ledger.open, LedgerUnavailable, settings.start_s, stop):
                await _close(closers)
                return None
        bus: Bus = not_opened("bus", name)
        opened: KafkaBus | None = None
        if "bus" in needs:
            bus = opened = KafkaBus(kafka_settings(name, settings), with_job_topics(settings.job_topics))
            closers.append(("bus", bus.close))
            if not await _patiently("Kafka", bus.open, BusUnavailable, settings.start_s, stop):
                await _close(closers)
                return None
        return Opened(Parts(bus=bus, ledger=ledger, kube=kube), opened, closers, asks)
    except (BusMisconfigured, LedgerMisconfigured) as error:
        await _close(closers)
        raise WrongSettings(str(error)) from None
    except BaseException:
        await _close(closers)
        raise


def _kube(settings: CommonSettings) -> KubeClient:
    try:
        if settings.kubeconfig:
            return KubeClient.from_kubeconfig(Path(settings.kubeconfig).expanduser(), context=settings.kube_context)
        return KubeClient.in_cluster()
    except BadConfiguration as error:
        where = "DRYSTONE_KUBECONFIG" if settings.kubeconfig else "no DRYSTONE_KUBECONFIG, so the pod's own account"
        raise WrongSettings(f"The API server cannot be addressed ({where}): {error}") from None


async def _patiently(
    what: str,
    act: Callable[[], Awaitable[object]],
    passing: type[Exception],
    limit_s: float,
    stop: asyncio.Event,
) -> bool:
    """Try until it works; False when asked to stop meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    backoff = Backoff(0.1, 2.0)
    while True:
        try:
            await act()
            return True
        except passing as error:
            pause = backoff.next()
            if loop.time() + pause > deadline:
                raise PartUnavailable(f"{what} could not be reached within {limit_s:g} s: {error}.") from None
            log.warning("waiting for a part", part=what, fault=str(error), tries=backoff.tries)
        if await comes(stop, pause):
            return False


async def close_parts(opened: Opened) -> None:
    await _close(opened.closers)


async def _close(closers: list[tuple[str, Callable[[], Awaitable[object]]]]) -> None:
    """Last opened, first closed. One that fails keeps none of the others open."""
    while closers:
        name, close = closers.pop()
        try:
            async with asyncio.timeout(5.0):
                await close()
        except Exception as error:
            log.warning("closing failed", part=name, fault=repr(error))
