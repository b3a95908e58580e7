"""What would let a job in, on a cluster written down in two lists: nodes, and what runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.domain.jobs import JobHead, Task, Wishes
from libs.domain.resources import WHOLE, Charge, Request
from libs.domain.usage import NodeUse
from libs.engine.api import EngineConfig, PendingJob, RunningTask
from libs.engine.ask import Ask, ask_key
from libs.engine.core import PlacementEngine
from libs.engine.devices import NodeState
from libs.engine.whatif import WhatIf, said
from libs.sim.errors import SimulationError
from libs.sim.lists import NodeRow, rows
from libs.sim.world import node_fact

#: The time at which the question is asked; run times are counted back from it.
NOW: Final = 10_000_000_000.0
_MOST_S: Final = 3_200_000_000


class Running(NamedTuple):
    """`ran_s`: seconds since it started. `movable`: something makes it again when it is evicted."""

    name: str
    node: str
    request: Request
    job: str
    gang_min: int
    priority: int
    ran_s: int
    movable: bool


def read_running(path: Path) -> list[Running]:
    """Columns name, node, cpu_milli, memory_mib, num_gpu, gpu_milli as in lists of tasks, and where they are there:
    job, gang_min, priority (-1,000 to 1,000), ran_s, movable (yes or no; yes without the column). Raises
    SimulationError."""
    found: list[Running] = []
    for row in rows(path, ("name", "node", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        said_ = row.fields
        movable = said_.get("movable", "").strip() or "yes"
        if movable not in ("yes", "no"):
            raise row.wrong(f"movable is {movable!r}, not yes or no")
        found.append(
            Running(
                row.text("name"),
                row.text("node"),
                row.request(),
                said_.get("job", "").strip(),
                row.number("gang_min", 1, 100_000) if said_.get("gang_min", "").strip() else 1,
                row.number("priority", -1000, 1000) if said_.get("priority", "").strip() else 0,
                row.number("ran_s", 0, _MOST_S) if said_.get("ran_s", "").strip() else _MOST_S,
                movable == "yes",
            )
        )
    return found


def engine_of(nodes: list[NodeRow], running: list[Running], after_s: float = 0.0) -> PlacementEngine:
    """An engine that knows the cluster. Devices of running tasks: the tightest that fit, task after task. Raises
    SimulationError where a task does not fit where the list says."""
    engine = PlacementEngine(EngineConfig(consolidate=True, consolidate_after_s=after_s))
    states: dict[str, NodeState] = {}
    names: dict[str, str] = {}
    for at, row in enumerate(nodes):
        fact = node_fact(row, at)
        engine.node_seen(fact)
        states[row.name], names[row.name] = NodeState(at, fact, None), fact.name
    for number, task in enumerate(running):
        state = states.get(task.node)
        if state is None:
            raise SimulationError(f"{task.name} runs on {task.node}, which is not in the list of nodes")
        charge = state.charge(Ask(ask_key(Task("", task.name, "", request=task.request))))
        if charge is None:
            raise SimulationError(f"{task.name} does not fit on {task.node} beside those listed before it")
        state.take(charge)
        engine.pod_seen(_pod(task, number, names[task.node], charge))
    for name, state in states.items():
        engine.use_seen(_use(names[name], state))
    return engine


def _pod(task: Running, number: int, node: str, charge: Charge) -> RunningTask:
    return RunningTask(
        uid=f"{number:08d}",
        name=task.name,
        namespace="",
        node=node,
        job=task.job or f"alone/{number}",
        queue="default",
        priority=task.priority,
        charge=charge,
        ours=True,
        gang_min=task.gang_min,
        started=NOW - task.ran_s,
        wishes=Wishes(task.request) if task.movable else None,
    )


def _use(name: str, state: NodeState) -> NodeUse:
    gpus = tuple((WHOLE * state.exists[i] - state.milli[i], state.dev_mib[i] - state.mib[i]) for i in state.index)
    return NodeUse(
        name, 1, state.cap_cpu - state.cpu, state.cap_mem - state.mem, state.cap_pods - state.pods, gpus
    )  # fmt: skip


def asked(request: Request, tasks: int, priority: int = 0) -> PendingJob:
    """A job that waits: so many tasks that must start together."""
    head = JobHead("asked", "", "", priority=priority, gang_min=tasks, declared=tasks, created=NOW)
    return PendingJob(head, tuple(Task(f"t{i}", f"t{i}", "", index=i, request=request) for i in range(tasks)))


def told(answer: WhatIf, nodes: list[NodeRow]) -> dict[str, Any]:
    """The answer as plain data; nodes by the names of the list."""
    names = {node_fact(row, at).name: row.name for at, row in enumerate(nodes)}
    moves = answer.moves
    return {
        "fits": answer.fits,
        "helps": [_renamed(one, names) for one in said(answer)],
        "moves": None
        if moves is None
        else {
            "moves": [
                {"task": m.pod.name, "from": names[m.source], "to": names[m.target], "gpus": _indices(m.charge)}
                for m in moves.moves
            ],
            "then": [
                {"task": p.task.name, "node": names[p.node], "gpus": _indices(p.charge)} for p in moves.placements
            ],
            "gpu_seconds_lost": round(moves.lost),
            "fewest": moves.fewest,
        },
        "nodes": [{"count": m.count, "like": names[m.like], "gpus": m.gpus, "model": m.model} for m in answer.nodes],
        "request": {smaller.side: smaller.amount for smaller in answer.request},
        "wishes": [{"wish": wish.wish, "name": wish.name} for wish in answer.wishes],
    }


def _renamed(text: str, names: dict[str, str]) -> str:
    return " ".join(names.get(word, word) for word in text.split(" "))


def _indices(charge: Charge) -> list[int]:
    return [grant.index for grant in charge.gpus]
