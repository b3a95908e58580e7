"""The ledger on Redis. Each method is one FCALL per batch of at most 256 items; all rules live in `lua/*.lua`, and what
is guaranteed of connections and calls in `libs.store.server`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from libs.domain.nodes import Gpu, Node
from libs.domain.plans import EvictionPlan, Plan
from libs.domain.queues import Queue
from libs.domain.usage import NodeUse, QueueUse
from libs.store.library import LAYOUT
from libs.store.port import (
    Committed,
    Due,
    DumpPage,
    Holder,
    LedgerState,
    Refusal,
    StreamBatch,
    Taken,
    TaskSeen,
)
from libs.store.server import Server, text_of

BATCH = 256
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_plan = msgspec.json.Decoder(Plan).decode
_eviction = msgspec.json.Decoder(EvictionPlan).decode
_committed = msgspec.json.Decoder(list[Committed]).decode
_node_uses = msgspec.json.Decoder(tuple[NodeUse, ...]).decode
_queue_uses = msgspec.json.Decoder(tuple[QueueUse, ...]).decode
_holders = msgspec.json.Decoder(tuple[Holder, ...]).decode
_refusals = msgspec.json.Decoder(dict[str, Refusal]).decode
_refusal_lists = msgspec.json.Decoder(list[dict[str, Refusal]]).decode


def _batches(items: Sequence[T], size: int = BATCH) -> Iterable[Sequence[T]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _plan_batches(plans: Sequence[Plan] | Sequence[EvictionPlan]) -> Iterable[list[Any]]:
    """A plan is never cut; a batch has at most BATCH assignments and victims, unless one plan alone has more."""
    batch: list[Any] = []
    size = 0
    for plan in plans:
        weight = len(plan.assignments) + (len(plan.victims) if isinstance(plan, EvictionPlan) else 0)
        if batch and size + weight > BATCH:
            yield batch
            batch, size = [], 0
        batch.append(plan)
        size += weight
    if batch:
        yield batch


class RedisLedger:
    """`url` and keyword arguments are redis-py's own (rediss://, username, password, ssl_ca_certs, ...).

    Durations in seconds: `planned_s` until a planned claim is freed, `writing_s` until a writing one is handed to a
    resolver (again every `rearm_s`), `earmark_cap_s` at most for an earmark, `slack_s` after its last victim left.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "{drystone}",
        timeout_s: float = 2.0,
        connections: int = 8,
        planned_s: float = 10.0,
        writing_s: float = 10.0,
        rearm_s: float = 5.0,
        earmark_cap_s: float = 600.0,
        slack_s: float = 5.0,
        client: Any = None,
        blocking_client: Any = None,
        **connection: Any,
    ) -> None:
        self.server = Server(
            url,
            prefix=prefix,
            timeout_s=timeout_s,
            connections=connections,
            client=client,
            blocking_client=blocking_client,
            connection=connection,
        )
        self._planned_ms = int(planned_s * 1000)
        self._writing_ms = int(writing_s * 1000)
        self._rearm_ms = int(rearm_s * 1000)
        self._cap_ms = int(earmark_cap_s * 1000)
        self._slack_ms = int(slack_s * 1000)
        self._generation = 0

    async def close(self) -> None:
        await self.server.close()

    async def open(self) -> LedgerState:
        return self._adopt(await self.server.open())

    def _adopt(self, reply: Sequence[int]) -> LedgerState:
        generation, whole, term = reply
        self._generation = int(generation)
        return LedgerState(generation=self._generation, whole=bool(whole), term=int(term))

    async def state(self) -> LedgerState:
        return self._adopt(await self.server.call("state"))

    async def answers(self) -> None:
        """Returns where the server answers, whatever data set it has; else raises LedgerUnavailable. Nothing that the
        caller relies on changes by it, the generation included."""
        await self.server.call("position")

    # -- the watcher ------------------------------------------------------------------------------------------------
    async def begin_rebuild(self, term: int) -> LedgerState:
        return self._adopt(await self.server.call("begin_rebuild", term, self.server.run, LAYOUT))

    async def whole(self, term: int) -> LedgerState:
        return self._adopt(await self.server.call("whole", self._generation, term, self.server.run))

    async def mark(self) -> int:
        return int(await self.server.call("mark"))

    async def nodes_seen(self, nodes: Sequence[Node], term: int) -> None:
        for batch in _batches(nodes):
            rows = [
                (
                    n.name,
                    n.uid,
                    n.version,
                    n.spec,
                    n.cpu,
                    n.mem,
                    n.pods,
                    1 if n.gpus_closed else 0,
                    [(g.index, g.mib) for g in sorted(n.gpus, key=lambda g: g.index)],
                    _models(n.gpus),
                )
                for n in batch
            ]
            await self.server.call("nodes_seen", self._generation, term, _encode(rows))

    async def nodes_gone(self, names: Sequence[str], term: int) -> None:
        for batch in _batches(names):
            await self.server.call("nodes_gone", self._generation, term, _encode(batch))

    async def tasks_seen(self, tasks: Sequence[TaskSeen], term: int) -> Sequence[str]:
        disputed: list[str] = []
        for batch in _batches(tasks):
            disputed += map(text_of, await self.server.call("tasks_seen", self._generation, term, _encode(batch)))
        return disputed

    async def tasks_gone(self, uids: Sequence[str], term: int) -> None:
        for batch in _batches(uids):
            await self.server.call("tasks_gone", self._generation, term, self._slack_ms, _encode(batch))

    async def sweep(self, mark: int, listed: Sequence[str], term: int) -> Sequence[str]:
        there = frozenset(listed)
        freed: list[str] = []
        cursor = "0"
        while True:
            after, uids = await self.server.call("sweep_page", cursor, mark, BATCH)
            missing = [uid for uid in map(text_of, uids) if uid not in there]
            for batch in _batches(missing):
                reply = await self.server.call(
                    "sweep_free", self._generation, term, self._slack_ms, mark, _encode(batch)
                )
                freed += map(text_of, reply)
            cursor = text_of(after)
            if cursor == "0":
                return freed

    async def queues_seen(self, queues: Sequence[Queue], gone: Sequence[str], term: int) -> None:
        def limit(value: int | None) -> int:
            return -1 if value is None else value

        rows = [
            (q.path, q.version, limit(q.gpu_milli), limit(q.cpu), limit(q.mem), *((q.models,) if q.models else ()))
            for q in queues
        ]
        for batch in _batches(rows):
            await self.server.call("queues_seen", self._generation, term, _encode(batch), b"[]")
        for paths in _batches(gone):
            await self.server.call("queues_seen", self._generation, term, b"[]", _encode(paths))

    # -- placement --------------------------------------------------------------------------------------------------
    async def take(self, partition: int) -> Taken:
        epoch, *rows = await self.server.call("take", self._generation, partition)
        planned: list[Plan] = []
        writing: list[Plan] = []
        evictions: list[EvictionPlan] = []
        for kind, text, *states in rows:
            if text_of(kind) == "v":
                evictions.append(_eviction(text))
                continue
            plan = _plan(text)
            for out, claims in zip((planned, writing), states, strict=True):
                if claims:
                    out.append(_narrowed(plan, frozenset(map(text_of, claims))))
        return Taken(epoch=int(epoch), planned=tuple(planned), writing=tuple(writing), evictions=tuple(evictions))

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Committed]:
        out: list[Committed] = []
        for batch in _plan_batches(plans):
            out += _answers(await self.server.call("commit", self._planned_ms, *map(_encode, batch)))
        return out

    async def commit_evictions(self, plans: Sequence[EvictionPlan]) -> Sequence[Committed]:
        out: list[Committed] = []
        for batch in _plan_batches(plans):
            out += _answers(
                await self.server.call("commit_evictions", self._cap_ms, self._slack_ms, *map(_encode, batch))
            )
        return out

    async def drop(self, job: str, claims: Sequence[str], generation: int) -> None:
        for batch in _batches(claims):
            await self.server.call("drop", generation, _encode(batch), job)

    # -- binder -----------------------------------------------------------------------------------------------------
    async def begin(self, plans: Sequence[Plan]) -> Sequence[Mapping[str, Refusal]]:
        out: list[Mapping[str, Refusal]] = []
        for batch in _plan_batches(plans):
            rows = [
                (
                    p.id,
                    1 if p.gang else 0,
                    p.generation,
                    [(a.claim, a.task, a.node, a.node_spec) for a in p.assignments],
                )
                for p in batch
            ]
            out += _refusal_lists(await self.server.call("begin", self._writing_ms, _encode(rows)))
        return out

    async def confirm(self, claims: Mapping[str, str], generation: int) -> None:
        for batch in _batches(list(claims.items())):
            await self.server.call("confirm", generation, _encode(batch))

    async def release(self, claims: Sequence[str], generation: int) -> None:
        for batch in _batches(claims):
            await self.server.call("release", generation, _encode(batch))

    async def writing(self, claims: Sequence[str]) -> frozenset[str]:
        found: set[str] = set()
        for batch in _batches(claims):
            found.update(map(text_of, await self.server.call("writing", self._generation, _encode(batch))))
        return frozenset(found)

    # -- preemptor --------------------------------------------------------------------------------------------------
    async def begin_evict(self, plan: EvictionPlan) -> Mapping[str, Refusal]:
        uids = _encode([v.uid for v in plan.victims])
        return _refusals(await self.server.call("begin_evict", plan.generation, plan.id, uids))

    async def unmark(self, plan: str, uids: Sequence[str], generation: int) -> None:
        for batch in _batches(uids):
            await self.server.call("unmark", generation, plan, _encode(batch))

    # -- anybody ----------------------------------------------------------------------------------------------------
    async def expire(self, limit: int = BATCH) -> Sequence[Due]:
        due: list[Due] = []
        for state, claim, task, text in await self.server.call(
            "expire", self._generation, min(limit, BATCH), self._rearm_ms
        ):
            name = text_of(claim)
            plan = _narrowed(_plan(text), frozenset((name,))) if text else None
            due.append(Due(claim=name, state=text_of(state), plan=plan, task=text_of(task)))
        return due

    async def tail(self, position: str, wait_s: float = 0.5) -> StreamBatch:
        if not position:
            return StreamBatch(position="", lost=True)
        start = int(position)
        entries = await self.server.entries(start, BATCH, wait_s)
        if not entries:
            _, revision = await self.server.call("position")
            # A revision behind ours is an emptied server. One ahead of ours may just have been written: read on.
            return StreamBatch(position=position, lost=int(revision) < start)
        nodes: list[NodeUse] = []
        queues: list[QueueUse] = []
        for entry, fields in entries:
            at = int(text_of(entry).partition("-")[0])
            if at != start + 1:
                return StreamBatch(position=position, lost=True)
            start = at
            by_name = {text_of(k): v for k, v in fields.items()}
            nodes += _node_uses(by_name["n"])
            queues += _queue_uses(by_name["q"])
        return StreamBatch(position=str(start), nodes=tuple(nodes), queues=tuple(queues))

    async def dump(self, cursor: str = "") -> DumpPage:
        position, kind, scan = cursor.split("|") if cursor else ("", "u", "0")
        revision, after, uses = await self.server.call("dump", kind, scan, BATCH)
        position = position or text_of(revision)
        scan = text_of(after)
        if scan != "0":
            following = f"{position}|{kind}|{scan}"
        else:
            following = f"{position}|q|0" if kind == "u" else ""
        if kind == "u":
            return DumpPage(cursor=following, position=position, nodes=_node_uses(uses))
        return DumpPage(cursor=following, position=position, queues=_queue_uses(uses))

    async def holders(self, cursor: str = "") -> tuple[str, Sequence[Holder]]:
        kind, scan = cursor.split("|") if cursor else ("c", "0")
        after, page = await self.server.call("holders", kind, scan, BATCH)
        scan = text_of(after)
        if scan != "0":
            return f"{kind}|{scan}", _holders(page)
        kind = {"c": "e", "e": "t", "t": ""}[kind]
        return (f"{kind}|0" if kind else ""), _holders(page)


def _models(gpus: Sequence[Gpu]) -> str | list[str]:
    """One name where all devices are alike, else one per index; an empty name is none."""
    names = {gpu.model for gpu in gpus}
    if len(names) < 2:
        return names.pop() if names else ""
    by_index = {gpu.index: gpu.model for gpu in gpus}
    return [by_index.get(index, "") for index in range(max(by_index) + 1)]


def _answers(reply: Sequence[bytes]) -> list[Committed]:
    results, nodes, queues = reply
    answers = _committed(results)
    fresh, uses = _node_uses(nodes), _queue_uses(queues)
    return [msgspec.structs.replace(a, fresh=fresh, queues=uses) for a in answers]


def _narrowed(plan: Plan, claims: frozenset[str]) -> Plan:
    return msgspec.structs.replace(plan, assignments=tuple(a for a in plan.assignments if a.claim in claims))
