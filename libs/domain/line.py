"""Where a job that waits stands in line, and when it may start, as one replica of placement sees it."""

from __future__ import annotations

import msgspec


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """`position` is in its queue, from 1, of `waiting` jobs; `overall` in the line over all queues, 0 where it is
    further back than was looked. Beyond ten, positions are rounded. `behind` are the jobs right before it, the nearest
    first, and `why` says in words what puts them there.

    `start`, `start_low`, `start_high`: when it is expected to start, seconds since the epoch, 0: not known; `basis`
    says from what. `bound_s`: the most seconds that it waits from now as long as its queue asks for no more than its
    part of the cluster, 0: none can be given; `bound_basis` says what that rests on. `expects_s`: how long it is
    expected to wait at the longest, by what nothing enforces, 0: not known; `expects_basis` says by what.

    `kept_on` are nodes where room is being kept for it, `kept_for` other jobs for which room is being kept anywhere.
    `evicts` names the tasks that leave for it, by `rule`.
    """

    queue: str
    position: int
    waiting: int
    overall: int = 0
    behind: tuple[str, ...] = ()
    why: str = ""
    start: float = 0.0
    start_low: float = 0.0
    start_high: float = 0.0
    basis: str = ""
    bound_s: int = 0
    bound_basis: str = ""
    kept_on: tuple[str, ...] = ()
    kept_for: tuple[str, ...] = ()
    evicts: tuple[str, ...] = ()
    rule: str = ""
    expects_s: int = 0
    expects_basis: str = ""
