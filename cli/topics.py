"""`drystone topics`: make the topics, or say how they differ from the table."""

from __future__ import annotations

import asyncio
import sys

from libs.bus.admin import Drift, ensure_topics
from libs.bus.port import BusUnavailable
from libs.bus.settings import KafkaSettings


def check(bootstrap: str, *, create: bool, replicas: int) -> int:
    from cli.errors import CommandError

    try:
        drift = asyncio.run(_ensure(bootstrap, create=create, replicas=replicas))
    except BusUnavailable as fault:
        raise CommandError(f"no broker answers at {bootstrap}: {fault}") from fault
    for difference in drift:
        sys.stdout.write(f"{difference}\n")
    sys.stdout.write("topics differ\n" if drift else "topics are as they must be\n")
    return 1 if drift else 0


async def _ensure(bootstrap: str, *, create: bool, replicas: int) -> list[Drift]:
    settings = KafkaSettings(bootstrap=bootstrap, client_id="drystone-topics", source="drystone/topics")
    return await ensure_topics(settings, create=create, replicas=replicas)
