"""What can be chosen about a stack, apart from where it lies."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices; saved with the stack, so that a part started again later runs the same way."""

    parts: tuple[str, ...]
    audit: bool = False
    """Whether the API server logs every write with its user."""
    fsync: bool = False
    """Whether etcd waits for the disk. Off: a stack is thrown away, and on a shared disk the waiting would measure the
    disk rather than the scheduler. It survives the end of a process, not that of the machine."""
    appendonly: bool = False
    """Whether Redis keeps its data over a restart."""
    secured: bool = False
    """Whether Kafka asks for SASL (SCRAM) over TLS and has access lists, and Redis for users and TLS."""
    scrape_interval: str = "1s"
    """How often Prometheus reads its targets."""
    extra_args: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More arguments for a part, after its own."""
