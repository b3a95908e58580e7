"""Kafka's access lists for Drystone's services: made from the table of access in `libs.contracts`.

Only adds: what else is in the lists is somebody's decision. Adding what is there changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import CreateAclsRequest

from libs.bus.port import BusUnavailable
from libs.bus.settings import KafkaSettings
from libs.contracts.access import SERVICES, Rule, rules

_RESOURCES: Final = {"TOPIC": 2, "GROUP": 3}
_OPERATIONS: Final = {"READ": 3, "WRITE": 4, "DESCRIBE": 8, "DESCRIBE_CONFIGS": 10}
_LITERAL, _PREFIXED = 3, 4
_ALLOW: Final = 3


def service_rules(prefix: str, job_topics: Iterable[str]) -> list[Rule]:
    """Of all five services; the principal of each is `User:` with the prefix and the service's name."""
    topics = tuple(job_topics)
    return [rule for service in SERVICES for rule in rules(service, f"User:{prefix}{service}", topics)]


async def allow(settings: KafkaSettings, wanted: Iterable[Rule]) -> None:
    """Raises BusUnavailable with the broker's words where one is not taken."""
    admin = AIOKafkaAdminClient(**settings.client())
    try:
        async with asyncio.timeout(settings.request_s):
            await admin.start()
            for rule in wanted:
                request = CreateAclsRequest(
                    _RESOURCES[rule.resource],
                    rule.name,
                    _PREFIXED if rule.prefixed else _LITERAL,
                    rule.principal,
                    "*",
                    _OPERATIONS[rule.operation],
                    _ALLOW,
                )
                answer = await admin._send_request(request)
                for code, text in answer.creation_responses:
                    if code:
                        raise BusUnavailable(f"{rule} was not taken: {text or for_code(code).__name__}")
    except (KafkaError, TimeoutError, OSError) as error:
        raise BusUnavailable(f"no broker answers at {settings.bootstrap}: {error!r}") from None
    finally:
        await admin.close()
