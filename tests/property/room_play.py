"""A small cluster in which evictions play out: victims leave after their grace and are made again at once, what is
freed is their beneficiary's, and time passes. The books are kept here, apart from the engine's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from libs.domain.jobs import JobHead, Task
from libs.domain.occasions import TOGETHER_S
from libs.domain.queues import Queue, QueueHistory, ancestors
from libs.domain.resources import WHOLE, Charge, GpuGrant, GpuRequest, Request
from libs.domain.usage import NodeUse, QueueUse
from libs.engine.api import Decision, EngineConfig, PendingJob, Placement, RunningTask
from libs.engine.core import PlacementEngine
from libs.testkit.builders import node
from services.watcher.occasions import Evicted

START = 1_800_000_000.0
MIB = 81920


@dataclass(slots=True)
class Workload:
    """What goes on whatever becomes of its pods: one job of alike tasks, all of them its minimum unless said."""

    name: str
    queue: str
    gpus: int = 1
    tasks: int = 1
    least: int = 0
    priority: int = 0
    checkpoint_s: int = 0
    #: How long a task of it runs; 0: for ever.
    runs_s: float = 0.0
    made: int = 0

    @property
    def key(self) -> str:
        return f"gang/team/{self.name}" if self.tasks > 1 else f"pod/team/{self.name}"

    def head(self, created: float) -> JobHead:
        least = (self.least or self.tasks) if self.tasks > 1 else 1
        return JobHead(
            self.key, "team", "team", self.queue, priority=self.priority, gang_min=least, declared=self.tasks,
            created=created, workload="Job/team/" + self.name, checkpoint_s=self.checkpoint_s,
        )  # fmt: skip


@dataclass(slots=True)
class Awaited:
    """A beneficiary whose victims leave."""

    placements: tuple[Placement, ...]
    victims: set[str]


@dataclass(slots=True)
class Play:
    nodes: dict[str, int]
    queues: list[Queue]
    grace_s: float = 30.0
    history: bool = True
    now: float = START
    engine: PlacementEngine = field(default_factory=lambda: PlacementEngine(EngineConfig(explain=False)))
    workloads: dict[str, Workload] = field(default_factory=dict)
    running: dict[str, RunningTask] = field(default_factory=dict)
    pending: dict[str, list[Task]] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    awaited: dict[str, Awaited] = field(default_factory=dict)
    leaves_at: dict[str, float] = field(default_factory=dict)
    #: (when, workload, pods at once, rule) of every eviction.
    evictions: list[tuple[float, str, int, str]] = field(default_factory=list)
    #: When occasions on which pods of a workload went began, reckoned here from when each had started.
    occasions: dict[str, list[float]] = field(default_factory=dict)
    told: dict[tuple[str, str], Evicted] = field(default_factory=dict)
    revision: int = 1

    def __post_init__(self) -> None:
        for name, gpus in self.nodes.items():
            self.engine.node_seen(node(name, gpus=gpus, mib=MIB, cpu=10**6, mem=10**8))
        for queue in self.queues:
            self.engine.queue_seen(queue)

    # -- what comes ----------------------------------------------------------------------------------------------------
    def submit(self, workload: Workload) -> None:
        self.workloads[workload.key] = workload
        self.created[workload.key] = self.now
        self._make(workload, range(workload.tasks))

    def _make(self, workload: Workload, indices: range | list[int]) -> None:
        for index in indices:
            workload.made += 1
            name = f"{workload.name}-{index}-{workload.made}"
            request = Request(1000, 1024, GpuRequest(workload.gpus))
            self.pending.setdefault(workload.key, []).append(
                Task("uid-" + name, name, "team", "1", index=index, request=request, created=self.now)
            )

    def runs(self, workload: Workload, started: float, places: list[tuple[str, tuple[int, ...]]]) -> None:
        """It runs already."""
        self.workloads[workload.key] = workload
        self.created[workload.key] = started
        self._make(workload, range(workload.tasks))
        for task, (where, indices) in zip(self.pending.pop(workload.key), places, strict=True):
            grants = tuple(GpuGrant(i, WHOLE, MIB) for i in indices)
            self._start(workload, task, where, Charge(1000, 1024, grants), started)

    def _start(self, workload: Workload, task: Task, where: str, charge: Charge, at: float) -> None:
        head = workload.head(self.created[workload.key])
        self.running[task.id] = RunningTask(
            task.id, task.name, "team", where, head.key, head.queue, head.priority, charge, True,
            gang_min=head.gang_min, started=at, checkpoint_s=head.checkpoint_s, workload=head.workload,
        )  # fmt: skip

    # -- what happens --------------------------------------------------------------------------------------------------
    def step(self, seconds: float) -> dict[str, Decision]:
        """Time passes, whoever is due leaves, and all that wait are decided."""
        self.now += seconds
        for uid in [uid for uid, at in self.leaves_at.items() if at <= self.now]:
            self._leave(uid)
        for task in list(self.running.values()):
            runs_s = self.workloads[task.job].runs_s
            if runs_s and task.started + runs_s <= self.now and task.uid not in self.leaves_at:
                del self.running[task.uid]
                self.engine.pod_gone(task.uid)
        for key in [key for key, waits in self.awaited.items() if not waits.victims]:
            self._place(key, self.awaited.pop(key).placements)
        self._tell()
        keys = [key for key in self.pending if key not in self.awaited]
        decisions = self.engine.decide([self._pending(key) for key in keys], self.now)
        for key, decision in zip(keys, decisions, strict=True):
            if decision.victims:
                self._evict(key, decision)
            elif decision.placements:
                self._place(key, decision.placements)
        self.engine.settle()
        for uid in self.leaves_at:
            self.engine.pod_seen(self.running[uid])  # as soon as its plan is in the ledger
        return dict(zip(keys, decisions, strict=True))

    def _pending(self, key: str) -> PendingJob:
        held = sum(task.job == key for task in self.running.values())
        return PendingJob(self.workloads[key].head(self.created[key]), tuple(self.pending[key]), held=held)

    def _evict(self, key: str, decision: Decision) -> None:
        uids = {victim.uid for victim in decision.victims}
        assert not uids & self.leaves_at.keys(), "nobody is evicted for two"
        self.awaited[key] = Awaited(decision.placements, uids)
        hurt: dict[str, int] = {}
        for uid in uids:
            task = self.running[uid]
            self.leaves_at[uid] = self.now + self.grace_s
            self.running[uid] = msgspec.structs.replace(task, marked=True)
            hurt[task.workload] = hurt.get(task.workload, 0) + 1
            begun = self.occasions.setdefault(task.workload, [])
            if task.gang_min <= 1 or not begun or task.started > begun[-1] or self.now - begun[-1] > TOGETHER_S:
                begun.append(self.now)
        for workload, pods in hurt.items():
            self.evictions.append((self.now, workload, pods, decision.rule))

    def _leave(self, uid: str) -> None:
        task = self.running.pop(uid)
        at = self.leaves_at.pop(uid) - self.grace_s
        self.engine.pod_gone(uid)
        told = self.told.setdefault((task.queue, task.workload), Evicted([], []))
        told.add(at, task.started, task.gang_min > 1)
        for waits in self.awaited.values():
            waits.victims.discard(uid)
        workload = self.workloads[task.job]
        index = int(task.name.rsplit("-", 2)[1])
        self._make(workload, [index])

    def _place(self, key: str, placements: tuple[Placement, ...]) -> None:
        left = {task.id: task for task in self.pending[key]}
        for placement in placements:
            task = left.pop(placement.task.id)
            self._start(self.workloads[key], task, placement.node, placement.charge, self.now)
        self.pending[key] = list(left.values())
        if not left:
            del self.pending[key]
        self.check_room()

    # -- what the engine is told ---------------------------------------------------------------------------------------
    def _tell(self) -> None:
        self.revision += 1
        queue_uses: dict[str, list[int]] = {}
        held: dict[str, list[Charge]] = {name: [] for name in self.nodes}
        for task in self.running.values():
            self.engine.pod_seen(task)
            held[task.node].append(task.charge)
            _add(queue_uses, task.queue, task.charge)
        for key, waits in self.awaited.items():
            for placement in waits.placements:
                _add(queue_uses, self.workloads[key].queue, placement.charge)
                held[placement.node].append(self._beyond(placement))
        for name, charges in held.items():
            gpus = [[0, 0] for _ in range(self.nodes[name])]
            for grant in (grant for charge in charges for grant in charge.gpus):
                gpus[grant.index][0] += grant.milli
                gpus[grant.index][1] += grant.mib
            self.engine.use_seen(
                NodeUse(name, self.revision, sum(c.cpu for c in charges), sum(c.mem for c in charges), len(charges),
                        tuple((m, b) for m, b in gpus))
            )  # fmt: skip
        for path in {q.path for q in self.queues} | queue_uses.keys():
            self.engine.queue_use_seen(QueueUse(path, self.revision, *queue_uses.get(path, (0, 0, 0))))
        if self.history:
            for queue in {queue for queue, _ in self.told}:
                known = {name: evicted for (path, name), evicted in self.told.items() if path == queue}
                times = {name: tuple(evicted.times) for name, evicted in known.items()}
                pods = {name: tuple(evicted.pods) for name, evicted in known.items() if evicted.counted}
                self.engine.queue_history_seen(QueueHistory(queue, self.now, evictions=times, pods=pods))

    def _beyond(self, placement: Placement) -> Charge:
        """What of an earmark is not its victims' room."""
        leaving = {
            (task.node, grant.index) for uid in self.leaves_at for task in (self.running[uid],)
            for grant in task.charge.gpus
        }  # fmt: skip
        grants = tuple(g for g in placement.charge.gpus if (placement.node, g.index) not in leaving)
        return Charge(0, 0, grants)

    # -- what is looked at ---------------------------------------------------------------------------------------------
    def used(self, path: str) -> int:
        """Milli GPUs of what runs in the queue and below, and stays."""
        return sum(
            task.charge.gpu_milli
            for uid, task in self.running.items()
            if path in ancestors(task.queue) and uid not in self.leaves_at
        )

    def promised(self, path: str) -> int:
        """Milli GPUs that are kept for jobs of the queue and below while victims leave."""
        return sum(
            placement.charge.gpu_milli
            for key, waits in self.awaited.items()
            if path in ancestors(self.workloads[key].queue)
            for placement in waits.placements
        )

    def check_room(self) -> None:
        devices: dict[tuple[str, int], int] = {}
        for task in self.running.values():
            for grant in task.charge.gpus:
                place = task.node, grant.index
                devices[place] = devices.get(place, 0) + grant.milli
        assert all(milli <= WHOLE for milli in devices.values())


def _add(uses: dict[str, list[int]], queue: str, charge: Charge) -> None:
    for path in ancestors(queue):
        sums = uses.setdefault(path, [0, 0, 0])
        sums[0] += charge.gpu_milli
        sums[1] += charge.cpu
        sums[2] += charge.mem
