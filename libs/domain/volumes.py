"""Volume claims as far as they bear on where a pod may run."""

from __future__ import annotations

import enum

import msgspec

from libs.domain.rules import NodeTerm


class ClaimState(enum.StrEnum):
    BOUND = "bound"
    #: Provisioned when a pod that uses it has a node (binding mode WaitForFirstConsumer).
    FIRST_USE = "first use"
    UNBOUND = "unbound"
    #: Waits for first use and would have to be matched with a volume that an administrator made.
    STATIC = "static"


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One PersistentVolumeClaim with what is known of its volume. `node`: nodes that can reach it, None: all. `zones`:
    zone and region labels of the volume with the values that a node may have. `driver`, `handle`: of a CSI volume, what
    counts against a node's limit. `exclusive`: one pod in the cluster may use it (ReadWriteOncePod)."""

    namespace: str
    name: str
    state: ClaimState = ClaimState.UNBOUND
    node: tuple[NodeTerm, ...] | None = None
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    driver: str = ""
    handle: str = ""
    exclusive: bool = False

    @property
    def volume(self) -> tuple[str, str] | None:
        """What a node attaches, once however many pods use it."""
        return (self.driver, self.handle) if self.driver else None
