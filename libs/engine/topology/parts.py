"""A job as a tree of parts that each wish to be near each other: the job, its roles, groups of a role.

A part's domain lies in that of the part above it. Members that run already, or are on their way to a node, are part of
it: where they are decides where the others of a broken gang may go.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from libs.domain.jobs import Task
from libs.domain.topology import Near, Topology
from libs.engine.api import PendingJob
from libs.engine.session import Session


@dataclass(slots=True, eq=False)
class Part:
    """`own` are tasks in no part below. `held`: rows of the nodes where members are already, one per member."""

    name: str
    near: Near
    own: list[Task] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def tasks(self) -> Iterator[Task]:
        yield from self.own
        for part in self.parts:
            yield from part.tasks()

    def all(self) -> Iterator[Part]:
        """The part and everything below it, from the outside in."""
        yield self
        for part in self.parts:
            yield from part.all()

    @property
    def demands(self) -> bool:
        """Whether something required is in it or below it."""
        return any(part.near.required for part in self.all())


def wished(tasks: Iterable[Task]) -> bool:
    """Whether any of the tasks cares where the others are."""
    for task in tasks:  # noqa: SIM110 - every job is asked, and a generator costs several times more
        if task.topology is not None:
            return True
    return False


def demanding(tasks: Iterable[Task]) -> bool:
    """Whether any of the tasks requires a domain."""
    for task in tasks:  # noqa: SIM110 - as above
        if task.topology is not None and task.topology.required:
            return True
    return False


def parts_of(session: Session, job: PendingJob, tasks: Iterable[Task]) -> Part:
    """The tree of these tasks of a job, with the members that hold room already. Parts that demand something come
    first, then the large ones: they have the least choice."""
    tree = _Tree()
    for task in tasks:
        tree.at(task.topology, task.role).own.append(task)
    for topology, role, node in _held(session, job):
        row = session.snapshot.rows.get(node)
        if row is not None:
            for part in tree.path(topology, role):
                part.held.append(row)
    _sort(tree.root)
    return tree.root


class _Tree:
    def __init__(self) -> None:
        self.root = Part("", Near())
        self._parts: dict[Hashable, Part] = {}

    def at(self, topology: Topology | None, role: str) -> Part:
        return self.path(topology, role)[-1]

    def path(self, topology: Topology | None, role: str) -> list[Part]:
        """From the root to the innermost part; parts that are not there yet are made."""
        found = [self.root]
        if topology is None:
            return found
        key: tuple[Hashable, ...] = ()
        title = f"role {role}" if role else "the pods"
        for near, more, name in (
            (topology.job, (), "the job"),
            (topology.role, (role,), title),
            (topology.group, (role, topology.number), f"group {topology.number} of {title}"),
        ):
            if not near:
                continue
            key = (*key, near, *more)
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = Part(name, near)
                found[-1].parts.append(part)
            found.append(part)
        return found


def _held(session: Session, job: PendingJob) -> Iterator[tuple[Topology | None, str, str]]:
    """(wish, role, node) of members that hold room and stay."""
    running = session.running
    seen: set[str] = set()
    for member in running.by_job.get(job.head.key, {}).values():
        if running.stays(member):
            seen.update((member.uid, member.task))
            yield member.topology, _role(member.task), member.node
    assumed = session.book.assumed
    for one in job.holds:
        pod = assumed.get(one)
        if pod is not None and pod.task is not None and one not in seen:
            yield pod.task.topology, pod.task.role, pod.node


def _role(task: str) -> str:
    """Of a task id "<job uid>/<role>/<index>/<attempt>"; else the pod has none."""
    parts = task.split("/")
    return parts[1] if len(parts) == 4 else ""


def _sort(part: Part) -> None:
    for inner in part.parts:
        _sort(inner)
    part.parts.sort(key=lambda p: (not p.demands, -_size(p), p.name))


def _size(part: Part) -> int:
    return sum(task.request.gpu_milli * 1_000_000 + task.request.cpu for task in part.tasks())
