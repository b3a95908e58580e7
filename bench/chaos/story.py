"""The story of one job, for a round that failed: its pods, what was said about it, what the ledger holds for it.

Told from outside: pods and their changes as the kubelets saw them, every record between services that speaks of the
job, its charges in the ledger, the last verdict, and the lines of services' logs that name it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from libs.contracts import topics
from libs.store.port import Holder

_TOPICS: Final = (topics.TASKS, topics.PLANS, topics.OUTCOMES, topics.EVICTIONS, topics.STATUS)
#: Enough for a gang that was decided many times; a story that is longer repeats itself.
_MOST: Final = 80

Line = tuple[float, str]


async def stories(
    jobs: Iterable[str], *, journal: dict[str, list[Line]], bootstrap: str, holders: list[Holder], logs: Path
) -> list[str]:
    """One text per job key, lines in order of time. What cannot be read is left out with a word about it."""
    wanted = list(dict.fromkeys(jobs))
    said = await _said(bootstrap, wanted) if wanted else {}
    found = await asyncio.to_thread(_logged, logs, wanted)
    return [
        _text(
            key, [*journal.get(key, ()), *said.get(key, ()), *found.get(key, ())], [h for h in holders if h.job == key]
        )
        for key in wanted
    ]


def _text(key: str, lines: list[Line], holders: list[Holder]) -> str:
    told = [f"{_clock(at)} {what}" for at, what in sorted(lines)]
    if len(told) > _MOST:
        told = [*told[: _MOST // 2], f"... {len(told) - _MOST} more ...", *told[-_MOST // 2 :]]
    held = [
        f"ledger: {h.state} {h.id} task {h.task} on {h.node}, GPUs {[g.index for g in h.charge.gpus]}" for h in holders
    ]
    return "\n    ".join([f"story of {key}", *told, *(held or ["ledger: nothing"])])


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}"


async def _said(bootstrap: str, keys: list[str]) -> dict[str, list[Line]]:
    """Items of records that name one of the jobs, by job."""
    found: dict[str, list[Line]] = {key: [] for key in keys}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    try:
        async with asyncio.timeout(20):
            await consumer.start()
            places = [TopicPartition(topic.name, n) for topic in _TOPICS for n in range(topic.partitions)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            while [place for place, end in ends.items() if await consumer.position(place) < end]:
                for place, records in (await consumer.getmany(timeout_ms=500)).items():
                    for record in records:
                        for item in _items(record.value or b""):
                            for key in keys:
                                if _about(item, key):
                                    line = f"{place.topic.removeprefix('drystone.')}: {_brief(item)}"
                                    found[key].append((record.timestamp / 1000, line))
    except (KafkaError, TimeoutError) as error:
        for lines in found.values():
            lines.append((time.time(), f"what was said could not be read: {error!r}"))
    finally:
        await consumer.stop()
    return found


def _items(value: bytes) -> Iterator[dict[str, Any]]:
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return
    if isinstance(decoded, dict):
        yield from decoded.get("items", (decoded,))


def _about(item: dict[str, Any], key: str) -> bool:
    if (item.get("job") or item.get("head", {}).get("key")) == key:
        return True
    return any(victim.get("job") == key for victim in item.get("victims", ()))


def _brief(item: dict[str, Any]) -> str:
    """What matters of an item, in one line."""
    parts = [
        f"{name}={item[name]}"
        for name in ("id", "plan", "phase", "reason", "cause", "void", "refused")
        if item.get(name)
    ]
    if item.get("tasks") and isinstance(item["tasks"], list):
        parts.append(
            "tasks=" + " ".join(f"{t.get('name') or t.get('task')}:{t.get('landed', '')}" for t in item["tasks"])
        )
    parts += [f"{name}={item[name]}" for name in ("bound", "gone") if isinstance(item.get(name), list)]
    if item.get("assignments"):
        parts.append(
            "to=" + " ".join(f"{a['name']}@{a['node']}({a['claim'].rsplit('.', 1)[-1]})" for a in item["assignments"])
        )
    if item.get("victims"):
        parts.append("victims=" + " ".join(f"{v['name']}@{v['node']}" for v in item["victims"]))
    if item.get("job") and item.get("victims"):
        parts.append(f"for={item['job']}")
    verdict = item.get("verdict") or {}
    if verdict:
        parts.append(f"verdict={verdict.get('kind')}: {verdict.get('reason', '')} {verdict.get('message', '')}")
    return " ".join(parts)


def _logged(directory: Path, keys: list[str]) -> dict[str, list[Line]]:
    """Lines of services' logs that name a job (JSON, one a line)."""
    found: dict[str, list[Line]] = {key: [] for key in keys}
    for path in sorted(directory.glob("*.log")):
        for raw in path.read_bytes().splitlines():
            for key in keys:
                if f'"{key}"'.encode() in raw:
                    found[key].append(_log_line(raw))
    return found


def _log_line(raw: bytes) -> Line:
    try:
        entry: dict[str, Any] = msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return time.time(), raw.decode(errors="replace")[:300]
    stamp = str(entry.pop("timestamp", ""))
    at = time.time()
    if stamp:
        at = datetime.fromisoformat(stamp).timestamp()
    for name in ("level", "service", "job"):
        entry.pop(name, None)
    replica = entry.pop("replica", "")
    return at, f"{replica}: {entry.pop('event', '')} {entry}"
