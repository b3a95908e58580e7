"""A workload on which a cluster stands idle while jobs wait, and what each remedy brings.

Eight teams, each with its own nodes, an eighth of the cluster each, whatever they need; teams work in shifts, so that
one queues while another's nodes are idle; most tasks are small and get a whole GPU each; gangs wait at the head of a
line that lets nobody pass. Together the teams ask for less than the cluster has. All of it is made from a seed. The
same remedies can be played on the jobs of any trace, as far as they apply there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from libs.sim.queue.cluster import WHOLE
from libs.sim.queue.loop import Costs
from libs.sim.queue.study import Setup
from libs.sim.queue.trace import TraceJob

HOUR = 3600.0
DAY = 24 * HOUR

#: Share of all work per team.
TEAMS = (("vision", 0.145), ("speech", 0.14), ("search", 0.135), ("ads", 0.13), ("maps", 0.125), ("risk", 0.115),
         ("labs", 0.11), ("infra", 0.10))  # fmt: skip

#: GPUs (milli), share of the work, median run in seconds.
SHAPES = (
    (100, 0.06, 5400.0), (250, 0.12, 7200.0), (500, 0.12, 7200.0), (1000, 0.20, 10800.0), (2000, 0.12, 10800.0),
    (4000, 0.14, 10800.0), (8000, 0.16, 10800.0), (16000, 0.08, 7200.0),
)  # fmt: skip

#: Of all jobs, this share is of high priority.
URGENT = 0.05
LONGEST = 2 * DAY
#: No urgent job of the story waits longer than this under Drystone's order, seconds.
URGENT_WAIT_S: Final = DAY
OURS: Final = "+ ordering (ours)"


@dataclass(frozen=True, slots=True)
class Workload:
    nodes: int = 32
    gpus_per_node: int = 8
    days: float = 14.0
    load: float = 0.88
    seed: int = 7

    @property
    def fence(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, self.nodes // len(TEAMS)) for name, _ in TEAMS)

    @property
    def place(self) -> Place:
        return Place(self.nodes, self.gpus_per_node, self.fence)


def make(workload: Workload) -> list[TraceJob]:
    """Jobs by submit time. Run times are log-normal (sigma 1.3), cut at two days."""
    draw = random.Random(workload.seed)
    span = workload.days * DAY
    total = workload.load * workload.nodes * workload.gpus_per_node * span
    jobs: list[TraceJob] = []
    for number, (team, part) in enumerate(TEAMS):
        for milli, share, median in SHAPES:
            left = total * part * share
            while left > 0:
                duration = min(LONGEST, draw.lognormvariate(0.0, 1.3) * median, left / milli * 1000 + 60)
                left -= duration * milli / 1000
                urgent = int(draw.random() < URGENT)
                submit = _shift(draw, number, span)
                jobs.append(TraceJob("", team, submit, round(duration, 1), milli, urgent))
    jobs.sort(key=lambda job: (job.submit, job.tenant, job.milli, job.duration))
    return [
        TraceJob(str(n), job.tenant, job.submit, job.duration, job.milli, job.priority) for n, job in enumerate(jobs)
    ]


def _shift(draw: random.Random, team: int, span: float) -> float:
    """Three of four jobs come in the team's own eight hours of the day; teams start three hours apart."""
    while True:
        at = draw.random() * span
        hour = (at / HOUR - 3 * team) % 24
        if hour < 8 or draw.random() < 1 / 6:
            return round(at, 1)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the jobs run. `fence`: nodes of each tenant; empty: there are no fences to take down."""

    nodes: int
    gpus_per_node: int
    fence: tuple[tuple[str, int], ...] = ()
    costs: Costs = field(default_factory=Costs)


def remedies(place: Place, jobs: Sequence[TraceJob], services: bool = True) -> list[Setup]:
    """From the base to ours, one remedy after the other; then ours without each of them and, with `services`, in the
    order that the services keep, by their own engine (some milliseconds a job). What does not apply is left out:
    sharing where nobody asks for a part of a GPU, pooling where nobody has a fence."""
    shares = any(job.milli < WHOLE for job in jobs)
    fences = bool(place.fence)

    def setup(label: str, policy: str, fenced: bool, whole: bool, spread: bool) -> Setup:
        return Setup(
            place.nodes, place.gpus_per_node, policy, place.costs, fenced and fences, place.fence,
            label=label, whole=whole and shares, spread=spread,
        )  # fmt: skip

    found = [setup("base", "fifo", True, True, True)]
    if shares:
        found.append(setup("+ sharing", "fifo", True, False, True))
    found.append(setup("+ packing", "fifo", True, False, False))
    if fences:
        found.append(setup("+ pooling", "fifo", False, False, False))
    found.append(setup(OURS, "drystone", False, False, False))
    if shares:
        found.append(setup("ours without sharing", "drystone", False, True, False))
    found.append(setup("ours without packing", "drystone", False, False, True))
    if fences:
        found.append(setup("ours without pooling", "drystone", True, False, False))
    found.append(setup("ours without ordering", "fifo-backfill", False, False, False))
    if services:
        found.append(setup("ours, services' order", "services", False, False, False))
    return found


def alone(place: Place, policies: Sequence[str]) -> list[Setup]:
    """One pool with the fences as guaranteed shares, under each of these policies."""
    names = [name.strip() for name in policies]
    return [Setup(place.nodes, place.gpus_per_node, name, place.costs, fence=place.fence) for name in names]
