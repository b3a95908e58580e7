"""What a service is handed. It opens and closes none of it, so the same object runs alone or beside the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from libs.bus.port import Bus
from libs.kube.port import Kube
from libs.runtime.clock import Clock, SystemClock
from libs.store.port import Ledger


@dataclass(frozen=True, slots=True)
class Parts:
    bus: Bus
    ledger: Ledger
    kube: Kube
    clock: Clock = field(default_factory=SystemClock)


class NotOpened:
    """Stands where a service said that it needs no such part; touching it is a programming error that says so."""

    def __init__(self, part: str, service: str) -> None:
        self._part, self._service = part, service

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self._service} does not open the {self._part}: {name} is not to be had")


def not_opened(part: str, service: str) -> Any:
    return NotOpened(part, service)
