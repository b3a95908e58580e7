"""The tree of queues as it stands: limits, shares, what is used, what was used of late, and what waits.

Read from the API server alone, as the caller: the queue objects and the statuses that the watcher writes on them about
once a minute. Nothing is asked of Drystone's services, so the answer is there even when they are not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.access import with_cluster
from cli.errors import CommandError
from cli.jobs import in_line
from cli.out import say, show
from libs.domain import keys
from libs.domain.queues import Eviction, ancestors
from libs.kube import queues, writes
from libs.kube.errors import ReadFailed
from libs.kube.objects import ABSENT, QueueSpec, queue_decoder
from libs.kube.port import Kube
from libs.kube.quantities import mib, milli, units
from libs.kube.queues import OF_MODEL, Placed, amounts_by_name, limits_of, tree, weights_of

SHORT: Final = {"gpu": keys.GPU_RESOURCE, "mem": "memory"}
#: Of a status' history, by name of the resource.
_PAST: Final = {keys.GPU_RESOURCE: "gpuMilliSeconds", "cpu": "cpuMilliSeconds", "memory": "memoryMibSeconds"}
_SEEN_S: Final = 300
#: Of those who wait, so many are named.
_FIRST: Final = 5


class Row:
    """One queue with its status. Amounts are thousandths, memory is MiB; None: nothing is said of it."""

    def __init__(self, place: Placed, status: Mapping[str, Any], now: float) -> None:
        self.place = place
        self.path = place.queue.path
        self.known = bool(status)
        self.pending: dict[str, Any] = status.get("pending") or {}
        self.limit = amounts_by_name(limits_of(place.queue))
        self.deserved = amounts_by_name(place.queue.deserved)
        said = status.get("used") or {}
        self.used = {name: _amount(name, text) for name, text in said.items()}
        past = status.get("history") or {}
        self.at = float(past.get("at") or 0.0)
        self.half_life_s = int(past.get("halfLifeSeconds") or 0)
        seconds = {name: int(past.get(field) or 0) for name, field in _PAST.items()}
        for model, used in (past.get("gpuMilliSecondsByModel") or {}).items():
            seconds[OF_MODEL + model] = int(used)
        self.recent = {
            name: _mean(used, self.at, self.half_life_s, now) for name, used in seconds.items() if self.half_life_s
        }
        self.weights = weights_of(place.queue)
        #: Where the half-life comes from: a queue's path, or nobody's.
        self.half_life_of = ""
        self.evictions = {one["workload"]: one["times"] for one in status.get("evictions") or ()}
        self.reasons = {one["workload"]: one.get("reasons") or () for one in status.get("evictions") or ()}
        # Told by the watcher; worked out here where it has told nothing yet.
        self.problems = [f"{reason}: {message}" for reason, message in place.problems]

    def over(self, name: str) -> int | None:
        """Above what it deserves (below: negative); None where it deserves nothing in particular."""
        if not self.known or name not in self.deserved:
            return None
        return self.used.get(name, 0) - self.deserved[name]

    def json(self) -> dict[str, Any]:
        names = sorted({*self.limit, *self.deserved, *self.used, *self.recent})
        return {
            "path": self.path,
            "namespaces": list(self.place.queue.namespaces),
            "limit": {name: _spelled(name, amount) for name, amount in self.limit.items()},
            "deserved": {name: _spelled(name, amount) for name, amount in self.deserved.items()},
            "used": {name: _spelled(name, amount) for name, amount in self.used.items()},
            "recent": {name: _spelled(name, amount) for name, amount in self.recent.items()},
            "weights": self.weights,
            "over": {name: _spelled(name, over) for name in names if (over := self.over(name)) is not None},
            "pending": self.pending,
            "preemptible": self.place.queue.preemptible,
            "evicted": self.evictions,
            "reasons": self.reasons,
            "problems": self.problems,
            "halfLifeSeconds": self.half_life_s,
            "halfLifeOf": self.half_life_of,
            "at": self.at,
        }


def queue(path: str = "", *, resource: str = "gpu", kubeconfig: Path | None = None, as_json: bool = False) -> int:
    """`path` is a queue's path or its plain name: it and what is below. `resource` of the table: gpu, cpu, memory, or a
    model of GPUs."""
    rows = with_cluster(kubeconfig, lambda kube, _own: _rows(kube))
    if path:
        rows = _below(rows, path)
    waiting = in_line(rows[0].path, kubeconfig) if path else []
    if as_json:
        said = [row.json() for row in rows]
        if path:
            said[0]["line"] = [{"job": group.title, **asdict(place)} for group, place in waiting]
        show(said)
        return 0
    if not rows:
        say("no queues")
        return 0
    name = _named(resource, rows)
    _table(rows, name)
    if path:
        _details(rows[0])
        for group, place in waiting[:_FIRST]:
            say(f"waits: {group.title}: {place.text}")
    return 0


async def _rows(kube: Kube) -> list[Row]:
    try:
        listed = await writes.list_all(kube, writes.QUEUES)
    except ReadFailed as failed:
        if failed.answer.status == 404:
            raise CommandError("this cluster has no queues: queues.drystone.dev is not installed") from None
        raise
    specs: dict[str, tuple[QueueSpec, str]] = {}
    found: dict[str, Mapping[str, Any]] = {}
    for raw in listed.items:
        seen = queue_decoder.decode(raw)
        specs[seen.metadata.name] = (seen.spec, seen.metadata.resource_version)
        found[seen.metadata.name] = msgspec.json.decode(seen.status) if seen.status != ABSENT else {}
    now = time.time()
    rows = [Row(place, found[name] or {}, now) for name, place in tree(specs).items()]
    says = {row.path for row in rows if row.place.queue.half_life_s}
    for row in rows:
        row.half_life_of = next((one for one in ancestors(row.path) if one in says), "")
    return sorted(rows, key=lambda row: row.path.split("/"))


def _below(rows: list[Row], path: str) -> list[Row]:
    named = [row for row in rows if path in (row.path, row.place.name)]
    if not named:
        raise CommandError(f"there is no queue {path}")
    top = named[0].path
    return [row for row in rows if row.path == top or row.path.startswith(top + "/")]


def _named(resource: str, rows: Iterable[Row]) -> str:
    name = SHORT.get(resource, resource)
    if name in _PAST:
        return name
    model = name if name.startswith(OF_MODEL) else OF_MODEL + name
    if any(model in amounts for row in rows for amounts in (row.limit, row.deserved, row.weights, row.used)):
        return model
    raise CommandError(f"{resource} is neither gpu, cpu, memory nor a model that a queue speaks of")


def _table(rows: list[Row], name: str) -> None:
    base = rows[0].path.count("/")
    lines = [("QUEUE", "LIMIT", "DESERVED", "USED", "RECENT", "SHARE", "PENDING")]
    for row in rows:
        depth = row.path.count("/") - base
        label = "  " * depth + (row.path.rsplit("/", 1)[-1] if depth else row.path)
        mark = " !" if row.problems else ""
        lines.append(
            (
                label + mark,
                _cell(name, row.limit.get(name)),
                _cell(name, row.deserved.get(name)),
                _cell(name, row.used.get(name, 0) if row.known else None),
                _cell(name, row.recent.get(name)),
                _share(name, row.over(name)),
                _waits(row.pending, name) if row.known else "-",
            )
        )
    widths = [max(len(line[n]) for line in lines) for n in range(6)]
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(line[n].rjust(widths[n]) for n in range(1, 6)), line[6]]
        say("  ".join(cells).rstrip())
    half = sorted({row.half_life_s for row in rows if row.half_life_s})
    if half:
        every = f"{half[0] / 3600:g} h" + (f" to {half[-1] / 3600:g} h, by queue" if len(half) > 1 else "")
        say(f"{_title(name)}. RECENT: mean use, of which a half is forgotten every {every}.")
    for row in rows:
        for problem in row.problems:
            say(f"! {row.path}: {problem}")


def _details(row: Row) -> None:
    spec = row.place.queue
    if spec.namespaces:
        say("namespaces: " + ", ".join(spec.namespaces))
    if row.weights:
        say("weights: " + ", ".join(f"{name} {weight}" for name, weight in row.weights.items()))
    if row.half_life_s:
        whose = "its own" if row.half_life_of == row.path else f"as {row.half_life_of} says" if row.half_life_of else ""
        say(f"half-life of its use: {row.half_life_s / 3600:g} h, {whose or 'of the service'}")
    kept = [] if spec.preemptible else ["nothing of it is evicted"]
    if spec.min_run_s:
        kept.append(f"a task runs {spec.min_run_s} s before it may be evicted")
    kept.append(f"a workload is evicted at most {spec.evictions} times in {spec.evictions_window_s / 3600:g} h")
    say("protection: " + "; ".join(kept))
    for workload, times in sorted(row.evictions.items(), key=lambda pair: -pair[1][-1])[:10]:
        say(
            f"evicted: {workload}, {len(times)} times, last {datetime.fromtimestamp(times[-1], UTC):%Y-%m-%d %H:%M:%S}Z"
        )
        for reason in row.reasons.get(workload, ()):
            pods = int(reason.get("pods") or 1)
            told = Eviction(reason["job"], reason["beneficiary"], reason["rule"], int(reason["at"]), pods)
            say(f"  {told.job}{f', {pods} pods,' if pods > 1 else ''} {told.sentence()}")
    if not row.known:
        say("nothing has been said of it yet: it was just made, or no Drystone leads here")
    elif row.at and time.time() - row.at > _SEEN_S and any(row.used.values()):
        say(f"as of {datetime.fromtimestamp(row.at, UTC):%Y-%m-%d %H:%M:%S}Z: nobody has told anything since")


def _mean(seconds: int, at: float, half_life_s: int, now: float) -> int:
    """The average use that amounts to these decayed resource seconds, as of now."""
    faded: float = math.exp2(-max(0.0, now - at) / half_life_s)
    return round(seconds * faded * math.log(2) / half_life_s)


def _amount(name: str, text: str) -> int:
    try:
        return mib(units(text, up=True), up=True) if name == "memory" else milli(text, up=True)
    except ValueError:
        return 0


def _spelled(name: str, amount: int) -> str:
    return f"{amount}Mi" if name == "memory" else queues.spelled(amount)


def _cell(name: str, amount: int | None) -> str:
    if amount is None:
        return "-"
    return f"{amount / 1024:.5g}Gi" if name == "memory" else f"{amount / 1000:.5g}"


def _share(name: str, over: int | None) -> str:
    if over is None:
        return "-"
    if not over:
        return "even"
    return f"{_cell(name, abs(over))} {'over' if over > 0 else 'under'}"


def _waits(pending: Mapping[str, Any], name: str) -> str:
    jobs = int(pending.get("jobs") or 0)
    if not jobs:
        return "-"
    gpus = _cell(name, milli(str(pending.get("gpus") or "0"), up=True)) if name == keys.GPU_RESOURCE else ""
    return f"{jobs} job{'s' if jobs > 1 else ''}" + (f", {gpus} GPUs" if gpus else "")


def _title(name: str) -> str:
    if name.startswith(OF_MODEL):
        return f"GPUs {name[len(OF_MODEL) :]}"
    return {keys.GPU_RESOURCE: "GPUs", "cpu": "CPU cores", "memory": "Memory"}[name]
