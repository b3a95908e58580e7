"""Members of a consumer group are numbered by whoever divides the partitions: all learn which of how many they are.

The sticky assignment moves as little as it may, so what a member owns does not say who else there is. The group's
leader knows them all and sends each its seat with its partitions. A leader of a release that knows no seats sends none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment

#: Number from 0, and how many there are.
Seat = tuple[int, int]

_SAID: Final = re.compile(rb"seat (\d{1,9}) of (\d{1,9})")


class SeatedAssignor(StickyPartitionAssignor):  # type: ignore[misc]
    """Seats go by the lowest partition that each owns, so that who keeps its partitions mostly keeps its seat. Whoever
    owns nothing has none."""

    seat: Seat | None = None

    @classmethod
    def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, ConsumerProtocolMemberAssignment]:
        divided = super().assign(cluster, members)
        owners = sorted((min(found.partitions()), member) for member, found in divided.items() if found.assignment)
        for number, (_, member) in enumerate(owners):
            found = divided[member]
            said = b"seat %d of %d" % (number, len(owners))
            divided[member] = ConsumerProtocolMemberAssignment(found.version, found.assignment, said)
        return dict(divided)

    @classmethod
    def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
        super().on_assignment(assignment)
        said = _SAID.fullmatch(assignment.user_data or b"")
        number, count = (int(said[1]), int(said[2])) if said else (0, 0)
        cls.seat = (number, count) if number < count else None
