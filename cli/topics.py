"""`drystone topics`: make the topics, or say how they differ from the table; and who may use them."""

from __future__ import annotations

import asyncio

from cli.access import kafka
from cli.acls import allow, service_rules
from cli.errors import CommandError
from cli.out import say
from libs.bus.admin import Drift, ensure_topics
from libs.bus.port import BusMisconfigured, BusUnavailable
from libs.contracts.access import Rule
from libs.contracts.tenants import TenantPolicy
from libs.contracts.topics import with_job_topics
from libs.host.settings import WrongSettings, read_settings
from services.watcher.settings import WatcherSettings


def check(bootstrap: str, *, create: bool, replicas: int, allow_prefix: str | None = None) -> int:
    try:
        drift = asyncio.run(_ensure(bootstrap, create=create, replicas=replicas))
        if allow_prefix is not None:
            for rule in asyncio.run(_allow(bootstrap, allow_prefix)):
                say(str(rule))
    except (BusUnavailable, BusMisconfigured) as fault:
        raise CommandError(str(fault)) from None
    for difference in drift:
        say(str(difference))
    say("topics differ" if drift else "topics are as they must be")
    return 1 if drift else 0


async def _allow(bootstrap: str, prefix: str) -> list[Rule]:
    """The services' rules, with the tenants' job topics."""
    wanted = service_rules(prefix, [tenant.topic for tenant in _tenants()])
    await allow(kafka(bootstrap), wanted)
    return wanted


async def _ensure(bootstrap: str, *, create: bool, replicas: int) -> list[Drift]:
    wanted = with_job_topics(tenant.topic for tenant in _tenants())
    return await ensure_topics(kafka(bootstrap), create=create, topics=wanted, replicas=replicas)


def _tenants() -> tuple[TenantPolicy, ...]:
    """As DRYSTONE_TENANTS has them."""
    try:
        return read_settings(WatcherSettings).tenants
    except WrongSettings as error:
        raise CommandError(str(error)) from None
