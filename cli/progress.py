"""What happened in a replay, and its summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from libs.contracts.events import JobStatus
from libs.domain import keys
from libs.domain.jobs import Phase


@dataclass(slots=True)
class Progress:
    """What the replay's own watch and the status events said. `jobs` are the names of the tasks of each job."""

    jobs: dict[str, tuple[str, ...]]
    gpus: int
    started_at: float
    created_at: dict[str, float] = field(default_factory=dict)
    bound_at: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    used_gpus: dict[str, float] = field(default_factory=dict)
    waited_because: dict[str, str] = field(default_factory=dict)
    gpu_seconds: float = 0.0
    _since: float = 0.0

    def __post_init__(self) -> None:
        self._since = self.started_at

    def advance(self, now: float) -> None:
        self.gpu_seconds += sum(self.used_gpus.values()) * (now - self._since)
        self._since = now

    def seen(self, pod: dict[str, Any]) -> None:
        now = time.monotonic()
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod.get("status", {})
        self.created_at.setdefault(name, now)
        if spec.get("nodeName") and name not in self.bound_at:
            self.bound_at[name] = now
            self.advance(now)
            self.used_gpus[name] = _gpus(pod)
        if status.get("phase") in ("Succeeded", "Failed") and name not in self.ended:
            self.ended.add(name)
            self.advance(now)
            self.used_gpus.pop(name, None)

    def told(self, status: JobStatus) -> None:
        """A job that found no room is told so at once; its tasks did not only wait for a decision."""
        if status.phase is Phase.PENDING and status.verdict is not None:
            for task in self.jobs.get(status.job.rpartition("/")[2], ()):
                self.waited_because[task] = status.message

    @property
    def tasks(self) -> int:
        return sum(len(tasks) for tasks in self.jobs.values())


def _gpus(pod: dict[str, Any]) -> float:
    annotations = pod["metadata"].get("annotations", {})
    indices = [i for i in annotations.get(keys.GPUS, "").split(",") if i]
    return len(indices) * int(annotations.get(keys.GPU_MILLI, "1000")) / 1000


def summarise(progress: Progress, now: float) -> dict[str, Any]:
    """Waits are from creation to binding; the decision latency is that of the tasks that were never told to wait."""
    progress.advance(now)
    seconds = now - progress.started_at
    waits = {name: at - progress.created_at[name] for name, at in progress.bound_at.items()}
    at_once = sorted(wait for name, wait in waits.items() if name not in progress.waited_because)
    ordered = sorted(waits.values())
    last = max(progress.bound_at.values(), default=progress.started_at) - progress.started_at
    explained = max(
        progress.waited_because,
        key=lambda n: progress.bound_at.get(n, now) - progress.created_at.get(n, now),
        default="",
    )
    return {
        "GPUs": progress.gpus,
        "jobs": len(progress.jobs),
        "tasks": progress.tasks,
        "tasks placed": len(waits),
        "tasks finished": len(progress.ended),
        "tasks that waited for room": len(progress.waited_because),
        "seconds": round(seconds, 1),
        "GPU allocation %": round(100 * progress.gpu_seconds / (progress.gpus * max(seconds, 1e-9)), 1),
        "last task placed after s": round(last, 1),
        "wait ms": {
            "p50": _at(ordered, 0.5),
            "p90": _at(ordered, 0.9),
            "p99": _at(ordered, 0.99),
            "max": _at(ordered, 1.0),
        },
        "decision latency ms": {"p50": _at(at_once, 0.5), "p99": _at(at_once, 0.99)},
        "explained": {"task": explained, "why it waited": progress.waited_because.get(explained, "")},
    }


def _at(ordered: Sequence[float], share: float) -> float:
    """Milliseconds at a share of the ordered seconds."""
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else 0.0
