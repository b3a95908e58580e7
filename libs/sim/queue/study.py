"""Runs as they are asked for: one pool, or a fence round every tenant; several policies in parallel processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from libs.engine.order import ORDERS, Parameters, Scene, Services
from libs.sim.errors import SimulationError
from libs.sim.parallel import in_order
from libs.sim.queue.cluster import WHOLE, Cluster
from libs.sim.queue.figures import Result
from libs.sim.queue.lending import LendingLoop
from libs.sim.queue.loop import Costs, QueueLoop
from libs.sim.queue.services import ServicesLoop
from libs.sim.queue.trace import TraceJob

Done = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """`fence`: nodes per tenant. With `fenced` each tenant has only those; otherwise all share one pool, and a policy
    that knows shares guarantees them. `label` names the run in tables. `parameters` are of Drystone's own order.
    `whole`: who asks for a share of a GPU takes all of it. `spread`: to the emptiest node, not the smallest gap."""

    nodes: int
    gpus_per_node: int
    policy: str
    costs: Costs = field(default_factory=Costs)
    fenced: bool = False
    fence: tuple[tuple[str, int], ...] = ()
    parameters: Parameters = field(default_factory=Parameters)
    label: str = ""
    whole: bool = False
    spread: bool = False


def parse_fence(text: str) -> tuple[tuple[str, int], ...]:
    """ "a=16,b=8" -> nodes per tenant."""
    fence: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, count = part.rpartition("=")
        if not equals or not count.isdecimal() or int(count) < 1:
            raise SimulationError(f"a fence is TENANT=NODES[,...], not {part!r}")
        if name in fence:
            raise SimulationError(f"tenant {name!r} is fenced twice")
        fence[name] = int(count)
    return tuple(fence.items())


def check(setup: Setup, jobs: Sequence[TraceJob]) -> None:
    if setup.policy not in ORDERS:
        raise SimulationError(f"no policy {setup.policy!r}; there are {', '.join(ORDERS)}")
    total = sum(nodes for _, nodes in setup.fence)
    if total > setup.nodes:
        raise SimulationError(f"the fences hold {total} nodes, there are {setup.nodes}")
    if setup.fenced:
        missing = sorted({job.tenant for job in jobs} - {name for name, _ in setup.fence})
        if missing:
            raise SimulationError(f"no fence for {', '.join(map(repr, missing))}")


def simulate(setup: Setup, jobs: Sequence[TraceJob], done: Done | None = None) -> Result:
    """One run; `done` is told how many jobs have ended."""
    check(setup, jobs)
    started = time.perf_counter()
    histories = []
    ended = 0
    for nodes, members in _clusters(setup, _whole(jobs) if setup.whole else jobs):
        if not members:
            continue
        loop = _loop(setup, nodes, members)
        histories.append(loop.run(None if done is None else partial(_tell, done, ended)))
        ended += len(members)
    return Result.of(setup.label or setup.policy, histories, time.perf_counter() - started, _deserved(setup))


def _whole(jobs: Sequence[TraceJob]) -> Sequence[TraceJob]:
    return [job if job.milli >= WHOLE else replace(job, milli=WHOLE, useful=job.milli) for job in jobs]


def _deserved(setup: Setup) -> dict[str, float]:
    return {name: float(count * setup.gpus_per_node) for name, count in setup.fence}


def _loop(setup: Setup, nodes: int, jobs: Sequence[TraceJob]) -> QueueLoop:
    deserved = {} if setup.fenced else _deserved(setup)
    scene = Scene(float(nodes * setup.gpus_per_node), setup.costs.checkpoint, deserved, setup.parameters)
    order = ORDERS[setup.policy](scene)
    cluster = Cluster(nodes, setup.gpus_per_node, setup.spread)
    if isinstance(order, Services):
        loop = LendingLoop if order.lends else ServicesLoop
        return loop(cluster, order, setup.costs, jobs, deserved)
    return QueueLoop(cluster, order, setup.costs, jobs)


def _tell(done: Done, before: int, ended: int) -> None:
    done(before + ended)


def _clusters(setup: Setup, jobs: Sequence[TraceJob]) -> Iterator[tuple[int, Sequence[TraceJob]]]:
    if not setup.fenced:
        yield setup.nodes, jobs
        return
    for name, nodes in setup.fence:
        yield nodes, [job for job in jobs if job.tenant == name]


def simulate_all(
    setups: Sequence[Setup], jobs: Sequence[TraceJob], processes: int = 0, done: Callable[[int], None] | None = None
) -> list[Result]:
    """Results in the order of the set-ups; `done` is told the index of each that is ready."""
    for setup in setups:
        check(setup, jobs)
    return in_order(simulate, [(setup, jobs) for setup in setups], processes, done)
