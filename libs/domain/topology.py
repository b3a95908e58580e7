"""Near each other: which domain of the cluster tasks are to share, and what the domains are.

A **level** is a kind of domain: zones, racks, NVLink domains, single nodes. Nodes say theirs by a label. A wish names a
level by its name or by the label's key; a key that no configured level has is a level of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec


class Level(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`unique`: equal values of the label mean one domain wherever they are (a zone's name, the id of an NVLink
    domain). Else they do only within one domain of the level above: rack "r1" of zone a is not rack "r1" of zone b."""

    name: str
    label: str
    unique: bool = False


#: Widest first, as configuration lists them.
LEVELS: Final = (
    Level("zone", "topology.kubernetes.io/zone", unique=True),
    Level("rack", "topology.kubernetes.io/rack"),
    Level("nvlink", "nvidia.com/gpu.clique", unique=True),
    Level("host", "kubernetes.io/hostname", unique=True),
)


class Near(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Names of levels or keys of labels, empty: no such wish. `required`: all in one domain of that level or not at
    all. `preferred`: in one domain if one takes all, else in as narrow and as few ones as can be."""

    required: str = ""
    preferred: str = ""

    def __bool__(self) -> bool:
        return bool(self.required or self.preferred)


class Topology(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What one task shares with others: `job` with all of its job; `role` with all of its role (of pods that name no
    role: with all that wish the same); `group` with the others of group `number` of its role. Each lies within the
    domain of the one before."""

    job: Near = Near()
    role: Near = Near()
    group: Near = Near()
    number: int = 0

    def __bool__(self) -> bool:
        return bool(self.job or self.role or self.group)

    @property
    def required(self) -> bool:
        return bool(self.job.required or self.role.required or self.group.required)


def level_of(levels: Sequence[Level], wish: str) -> Level:
    """The level that a wish means. A name of a level stands before a key of a label."""
    for level in levels:
        if level.name == wish:
            return level
    for level in levels:
        if level.label == wish:
            return level
    return Level(wish, wish, unique=True)
