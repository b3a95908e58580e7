"""Limits of queues and what is used of them, at the queue and at every ancestor, tentative charges included."""

from __future__ import annotations

from collections.abc import Mapping

from libs.domain.queues import Queue, QueueHistory, Quota, ancestors
from libs.domain.usage import QueueUse
from libs.engine.fair.parts import NO_MODELS, Amounts, Models
from libs.engine.fair.shares import NOTHING, Shares


class Line:
    """One queue: its limits (None: none), what the ledger says is used, what this pass took. Amounts by model are kept
    where a model has a limit."""

    __slots__ = ("cpu", "limit_cpu", "limit_gpu", "limit_mem", "limit_models", "mem", "milli", "models", "path",
                 "taken_cpu", "taken_mem", "taken_milli", "taken_models", "tracked")  # fmt: skip

    def __init__(self, path: str) -> None:
        self.path = path
        self.limit_gpu: int | None = None
        self.limit_cpu: int | None = None
        self.limit_mem: int | None = None
        self.milli = self.cpu = self.mem = 0
        self.taken_milli = self.taken_cpu = self.taken_mem = 0
        self.limit_models: dict[str, int] = {}
        self.models: dict[str, int] = {}
        self.taken_models: dict[str, int] = {}
        #: Models that have a limit or are deserved.
        self.tracked: frozenset[str] = frozenset()

    @property
    def limited(self) -> bool:
        return (
            self.limit_gpu is not None
            or self.limit_cpu is not None
            or self.limit_mem is not None
            or bool(self.limit_models)
        )

    def short_of(self, milli: int, cpu: int, mem: int, back: int = 0, cpu_back: int = 0, mem_back: int = 0) -> str:
        """What the request exceeds here now: "GPU", "CPU", "memory", or empty. A side that is not asked for is never
        short, even where the queue stands above a limit that was lowered. `back` and its likes come free before."""
        if milli and self.limit_gpu is not None and self.milli + self.taken_milli - back + milli > self.limit_gpu:
            return "GPU"
        if cpu and self.limit_cpu is not None and self.cpu + self.taken_cpu - cpu_back + cpu > self.limit_cpu:
            return "CPU"
        if mem and self.limit_mem is not None and self.mem + self.taken_mem - mem_back + mem > self.limit_mem:
            return "memory"
        return ""

    def above(self, milli: int, cpu: int, mem: int) -> str:
        """What the request exceeds even with the queue empty."""
        if self.limit_gpu is not None and milli > self.limit_gpu:
            return "GPU"
        if self.limit_cpu is not None and cpu > self.limit_cpu:
            return "CPU"
        if self.limit_mem is not None and mem > self.limit_mem:
            return "memory"
        return ""

    def short_of_model(self, amounts: Mapping[str, int]) -> str:
        """Of which model `amounts` (milli GPUs by model) exceed what is left: "GPU <model>", or empty."""
        for model, milli in amounts.items():
            limit = self.limit_models.get(model)
            if limit is not None and self.models.get(model, 0) + self.taken_models.get(model, 0) + milli > limit:
                return f"GPU {model}"
        return ""

    def above_models(self, models: frozenset[str], milli: int) -> str:
        """The models, all of them limited, that together may not hold `milli` even with the queue empty."""
        if not models or not all(model in self.limit_models for model in models):
            return ""
        enough = sum(self.limit_models[model] for model in models) >= milli
        return "" if enough else "GPU " + " or ".join(sorted(models))

    def add_models(self, amounts: Mapping[str, int], sign: int) -> None:
        for model, milli in amounts.items():
            if model in self.tracked:
                self.taken_models[model] = self.taken_models.get(model, 0) + sign * milli

    def covers(self, path: str) -> bool:
        """Whether what that queue uses counts here."""
        return path == self.path or path.startswith(self.path + "/")

    def over(self, milli: int, cpu: int, mem: int) -> bool:
        """Whether the queue stands above a limit on a side of which a part, of this size, was just taken."""
        return (
            (milli > 0 and self.limit_gpu is not None and self.milli + self.taken_milli > self.limit_gpu)
            or (cpu > 0 and self.limit_cpu is not None and self.cpu + self.taken_cpu > self.limit_cpu)
            or (mem > 0 and self.limit_mem is not None and self.mem + self.taken_mem > self.limit_mem)
            or (milli > 0 and any(taken > 0 and self.short_of_model({m: 0}) for m, taken in self.taken_models.items()))
        )

    def add(self, milli: int, cpu: int, mem: int) -> None:
        self.taken_milli += milli
        self.taken_cpu += cpu
        self.taken_mem += mem


Chain = tuple[Line, ...]


def by_model(chain: Chain) -> bool:
    """Whether a queue of the chain has a limit or a share by model."""
    return any(line.tracked for line in chain)


class QueueBook:
    def __init__(self, fairness: int = 100, history: int = 0) -> None:
        self._lines: dict[str, Line] = {}
        self._revisions: dict[str, int] = {}
        self._chains: dict[str, Chain] = {}
        self._touched: set[Line] = set()
        self.histories: dict[str, QueueHistory] = {}
        #: What was said of each queue, by path.
        self.specs: dict[str, Queue] = {}
        #: Where queues stand by what the ledger says is used, without what this pass took.
        self.shares = Shares(self._used, use_of_models=self._used_of_models, fairness=fairness, history=history)

    def queue_seen(self, queue: Queue) -> None:
        self.specs[queue.path] = queue
        self.shares.queue_seen(queue)
        line = self._line(queue.path)
        line.limit_gpu, line.limit_cpu, line.limit_mem = queue.gpu_milli, queue.cpu, queue.mem
        line.limit_models = queue.models
        line.tracked = frozenset(queue.models) | frozenset(queue.deserved.models)
        self._chains.clear()

    def queue_gone(self, path: str) -> None:
        self.queue_seen(Queue(path))
        del self.specs[path]
        self.shares.queue_gone(path)

    def use_seen(self, use: QueueUse) -> None:
        if self._revisions.get(use.path, -1) >= use.revision:
            return
        self._revisions[use.path] = use.revision
        line = self._line(use.path)
        line.milli, line.cpu, line.mem, line.models = use.gpu_milli, use.cpu, use.mem, use.models

    def history_seen(self, history: QueueHistory) -> None:
        """The latest one stands; what a queue used over time orders jobs and never bounds them."""
        known = self.histories.get(history.path)
        if known is None or history.at >= known.at:
            self.histories[history.path] = history
            self.shares.history_seen(history)

    def _line(self, path: str) -> Line:
        line = self._lines.get(path)
        if line is None:
            line = self._lines[path] = Line(path)
        return line

    def _used(self, path: str) -> Amounts:
        line = self._lines.get(path)
        return (line.milli, line.cpu, line.mem) if line is not None else NOTHING

    def _used_of_models(self, path: str) -> Models:
        line = self._lines.get(path)
        return line.models if line is not None else NO_MODELS

    def line(self, path: str) -> Line | None:
        """What is known of one queue; None where nothing is."""
        return self._lines.get(path)

    def chain(self, path: str) -> Chain:
        """Those with a limit or a share among the queue and its ancestors, nearest first."""
        chain = self._chains.get(path)
        if chain is None:
            chain = tuple(
                line
                for p in ancestors(path)
                if (line := self._lines.get(p)) is not None
                and (line.limited or (p in self.specs and self.specs[p].deserved != Quota()))
            )
            self._chains[path] = chain
        return chain

    def charge(self, chain: Chain, milli: int, cpu: int, mem: int) -> None:
        """Tentatively; negative amounts give back."""
        for line in chain:
            line.add(milli, cpu, mem)
            self._touched.add(line)

    def charge_models(self, chain: Chain, amounts: Mapping[str, int], sign: int) -> None:
        """Beside `charge`, where a queue of the chain has a limit by model."""
        for line in chain:
            line.add_models(amounts, sign)
            self._touched.add(line)

    def settle(self) -> None:
        for line in self._touched:
            line.taken_milli = line.taken_cpu = line.taken_mem = 0
            line.taken_models = {}
        self._touched.clear()

    def truth(self) -> dict[str, tuple[int, int, int]]:
        """Used and taken per queue, for comparisons."""
        return {
            path: (line.milli + line.taken_milli, line.cpu + line.taken_cpu, line.mem + line.taken_mem)
            for path, line in sorted(self._lines.items())
        }
