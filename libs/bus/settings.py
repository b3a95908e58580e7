"""How to reach Kafka, and the limits that decide how soon a fault is seen."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final

#: A member learns by its next heartbeat that the group is divided anew; until then partitions of one that left, or was
#: found dead, stand still. A request a second each is nothing.
HEARTBEAT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    bootstrap: str
    client_id: str = "drystone"
    source: str = "drystone"  # CloudEvents `source` of everything published
    security: str = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    #: Base of `group_instance_id`; empty: members are dynamic.
    static_member: str = ""
    session_s: float = 10.0
    heartbeat_s: float = HEARTBEAT_S
    request_s: float = 10.0
    #: After it `publish` raises BusUnavailable.
    publish_s: float = 10.0
    #: A handler that holds a member longer than this loses its partitions.
    max_poll_s: float = 60.0
    #: How long a fetch may stay at the broker when there is nothing; a new record ends it at once.
    fetch_wait_ms: int = 500
    #: Readers of everything follow facts, which nobody waits for by the millisecond: the broker answers when this much
    #: is there or this long has passed. Without it each fact is fetched alone by every replica, at 0.15 ms of CPU.
    follow_wait_ms: int = 100
    follow_min_bytes: int = 64 * 1024
    #: Fetched ahead of a partition; of all together four times as much. A larger batch comes alone. A reader of a whole
    #: topic holds this much, compressed, and as memory that was used once is rarely given back, holds it for good.
    fetch_bytes: int = 1024 * 1024
    #: Check at `open` that the topics of the topic table have the shape they must have.
    check_topics: bool = True
    #: Without an answer of a broker for this long, or with fetched data nobody moved past for this long: unhealthy.
    stuck_s: float = 15.0
    #: A topic that was deleted, or made again, is noticed at the latest after this long; the client's own default is
    #: five minutes, in which a member of a group owns nothing and nobody knows why.
    metadata_s: float = 5.0

    def client(self) -> dict[str, Any]:
        """Arguments that every client of aiokafka takes."""
        args: dict[str, Any] = {
            "bootstrap_servers": [server.strip() for server in self.bootstrap.split(",")],
            "client_id": self.client_id,
            "request_timeout_ms": int(self.request_s * 1000),
            "metadata_max_age_ms": int(self.metadata_s * 1000),
            "security_protocol": self.security,
            "ssl_context": self.tls,
        }
        if self.security.startswith("SASL"):
            args |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        return args
