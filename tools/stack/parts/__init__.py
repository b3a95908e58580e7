"""The parts by name, each in a module of its own."""

from collections.abc import Iterable

from tools.stack.errors import StackError
from tools.stack.parts.apiserver import APISERVER
from tools.stack.parts.controller_manager import CONTROLLER_MANAGER
from tools.stack.parts.etcd import ETCD
from tools.stack.parts.kafka import KAFKA
from tools.stack.parts.kwok import KWOK
from tools.stack.parts.part import Part, Tools
from tools.stack.parts.prometheus import PROMETHEUS
from tools.stack.parts.redis import REDIS
from tools.stack.parts.scheduler import SCHEDULER

PARTS: dict[str, Part] = {
    part.name: part for part in (ETCD, APISERVER, KAFKA, REDIS, PROMETHEUS, SCHEDULER, CONTROLLER_MANAGER, KWOK)
}

ALL: tuple[str, ...] = tuple(PARTS)
DEFAULT: tuple[str, ...] = ("etcd", "apiserver", "kafka", "redis", "prometheus")
"""What the scheduler itself needs."""


def closure(names: Iterable[str]) -> tuple[str, ...]:
    """The named parts and those they need, each after what it needs."""
    wanted = set(names)
    if unknown := wanted - PARTS.keys():
        raise StackError(f"No part {', '.join(sorted(unknown))}; there are {', '.join(ALL)}.")
    open_names = list(wanted)
    while open_names:
        for needed in PARTS[open_names.pop()].after:
            if needed not in wanted:
                wanted.add(needed)
                open_names.append(needed)
    return tuple(name for name in ALL if name in wanted)


__all__ = ["ALL", "DEFAULT", "PARTS", "Part", "Tools", "closure"]
