"""`drystone topics`: make the topics, or say how they differ from the table; and who may use them."""

from __future__ import annotations

import asyncio
import sys

from cli.access import kafka
from cli.acls import allow, service_rules
from cli.errors import CommandError
from libs.bus.admin import Drift, ensure_topics
from libs.bus.port import BusMisconfigured, BusUnavailable
from libs.contracts.access import Rule
from libs.host.settings import WrongSettings, read_settings
from services.watcher.settings import WatcherSettings


def check(bootstrap: str, *, create: bool, replicas: int, allow_prefix: str | None = None) -> int:
    try:
        drift = asyncio.run(_ensure(bootstrap, create=create, replicas=replicas))
        if allow_prefix is not None:
            for rule in asyncio.run(_allow(bootstrap, allow_prefix)):
                sys.stdout.write(f"{rule}\n")
    except (BusUnavailable, BusMisconfigured) as fault:
        raise CommandError(str(fault)) from None
    for difference in drift:
        sys.stdout.write(f"{difference}\n")
    sys.stdout.write("topics differ\n" if drift else "topics are as they must be\n")
    return 1 if drift else 0


async def _allow(bootstrap: str, prefix: str) -> list[Rule]:
    """The services' rules, with the tenants' job topics of DRYSTONE_TENANTS."""
    try:
        tenants = read_settings(WatcherSettings).tenants
    except WrongSettings as error:
        raise CommandError(str(error)) from None
    wanted = service_rules(prefix, [tenant.topic for tenant in tenants])
    await allow(kafka(bootstrap), wanted)
    return wanted


async def _ensure(bootstrap: str, *, create: bool, replicas: int) -> list[Drift]:
    return await ensure_topics(kafka(bootstrap), create=create, replicas=replicas)
