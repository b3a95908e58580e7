"""Why a broker does not let us in: the client itself only says that no server could be reached."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka.conn import create_conn
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)

from libs.bus.port import BusMisconfigured, BusUnavailable
from libs.bus.settings import KafkaSettings

#: What one connection takes of a client's arguments.
_OF_A_CONNECTION: Final = frozenset(
    {"client_id", "security_protocol", "ssl_context", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"}
)


def account(settings: KafkaSettings) -> str:
    """Who we are to the broker, for sentences."""
    return f"the account {settings.sasl_username}" if settings.sasl_username else "a client without an account"


def in_words(error: BaseException, settings: KafkaSettings, what: str = "") -> str:
    """What the access list lacks, where that is the fault; `what` names the group or the topics."""
    if isinstance(error, GroupAuthorizationFailedError):
        return f"Kafka does not let {account(settings)} join the group {what}: its access list lacks it"
    if isinstance(error, TopicAuthorizationFailedError):
        return f"Kafka does not let {account(settings)} use the topic {what}: its access list lacks it"
    return repr(error)


async def why_not(settings: KafkaSettings, error: BaseException) -> BusMisconfigured | BusUnavailable:
    """What to raise after `error`: asks the first server once more, by a connection of its own. A wrong password is no
    matter of waiting; everything else may be."""
    unreachable = BusUnavailable(f"no broker answers at {settings.bootstrap}: {error!r}")
    host, _, port = settings.bootstrap.split(",")[0].strip().rpartition(":")
    known = {k: v for k, v in settings.client().items() if k in _OF_A_CONNECTION}
    try:
        async with asyncio.timeout(settings.request_s):
            connection = await create_conn(host, int(port), request_timeout_ms=2000, **known)
    except SaslAuthenticationFailed:
        return BusMisconfigured(
            f"Kafka at {settings.bootstrap} refuses {account(settings)}: its name or its password is wrong."
        )
    except (OSError, KafkaError, TimeoutError, ValueError) as found:
        return BusUnavailable(f"no broker answers at {settings.bootstrap}: {found!r}")
    connection.close()
    return unreachable
