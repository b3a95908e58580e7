"""The ledger on Redis. Each method is one FCALL per batch of at most 256 items; all rules live in `lua/*.lua`.

Guaranteed here: every connection compares the server's run id with the data set's before its first call (another run id
may have lost its last writes, so the ledger stops being whole until the watcher has rebuilt it); every call ends within
its time limit, with LedgerUnavailable where the effect is unknown; reads that wait use a client of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import redis.asyncio as aioredis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from libs.domain.nodes import Gpu, Node
from libs.domain.plans import EvictionPlan, Plan
from libs.domain.queues import Queue
from libs.domain.usage import NodeUse, QueueUse
from libs.runtime.tasks import still_wanted
from libs.store.library import LAYOUT, library, outdated
from libs.store.port import (
    Committed,
    Due,
    DumpPage,
    Holder,
    LedgerMisconfigured,
    LedgerState,
    LedgerUnavailable,
    Refusal,
    StaleGeneration,
    StreamBatch,
    Taken,
    TaskSeen,
)

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


class StaleTerm(StaleGeneration):
    """Another watcher has led since: this one must stop writing."""


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
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._planned_ms = int(planned_s * 1000)
        self._writing_ms = int(writing_s * 1000)
        self._rearm_ms = int(rearm_s * 1000)
        self._cap_ms = int(earmark_cap_s * 1000)
        self._slack_ms = int(slack_s * 1000)
        self._name, self._code = library()
        self._generation = 0
        self._run = ""
        self._embedded = client is not None
        self._client: Any = client or self._connect(url, connections, timeout_s, connection)
        self._blocking: Any = blocking_client or self._connect(url, 2, None, connection)

    def _connect(self, url: str, connections: int, socket_timeout: float | None, options: dict[str, Any]) -> Any:
        pool = aioredis.BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=self._timeout_s,
            socket_timeout=socket_timeout,
            socket_connect_timeout=self._timeout_s,
            redis_connect_func=self._connected,
            legacy_responses=True,
            **options,
        )
        return aioredis.Redis(connection_pool=pool)

    # -- connections ------------------------------------------------------------------------------------------------
    async def _connected(self, connection: Any) -> None:
        """A new connection may lead to another server, or to an emptied or restored one: compare run ids first."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        run = _run_id(await connection.read_response())
        for attempt in (0, 1):
            await connection.send_command("FCALL", f"{self._name}_hello", 1, self._prefix, run, LAYOUT)
            try:
                await connection.read_response()
                break
            except ResponseError as fault:
                if "Function not found" not in str(fault) or attempt:
                    # Told by the next call on this connection; raising here would look like an unreachable server.
                    break
                await connection.send_command("FUNCTION", "LOAD", self._code)
                try:
                    await connection.read_response()
                except ResponseError as loading:
                    if "already exists" not in str(loading):
                        raise
        self._run = run

    async def open(self) -> LedgerState:
        try:
            async with asyncio.timeout(4 * self._timeout_s):
                if self._embedded:
                    self._run = "embedded"
                else:
                    await self._check_server()
                await self._load()
                return self._adopt(await self._client.fcall(f"{self._name}_hello", 1, self._prefix, self._run, LAYOUT))
        except ResponseError as fault:
            if str(fault).startswith("LAYOUT"):
                raise LedgerMisconfigured(
                    f"The ledger's data has a newer layout ({fault}) than this release ({LAYOUT}): upgrade it."
                ) from fault
            if isinstance(fault, NoPermissionError) or "can't run this command" in str(fault):
                raise LedgerMisconfigured(f"Redis does not let our user do what the ledger needs: {fault}.") from fault
            raise self._told(fault) from fault
        except AuthenticationError as fault:
            raise LedgerMisconfigured(f"Redis does not let us in: {str(fault).rstrip('.')}.") from fault
        except (RedisError, OSError, TimeoutError) as fault:
            raise LedgerUnavailable(str(fault) or type(fault).__name__) from fault

    async def _check_server(self) -> None:
        info = await self._client.info("server")
        version = str(info.get("redis_version", "0"))
        self._run = str(info["run_id"])
        if int(version.split(".", 1)[0]) < 7:
            raise LedgerMisconfigured(f"Redis {version} has no functions: version 7.0 or newer is needed.")
        try:
            config = await self._client.config_get("maxmemory-policy", "min-replicas-to-write")
        except ResponseError as fault:
            # Managed servers hide CONFIG; INFO tells the policy everywhere.
            memory = await self._client.info("memory")
            config = {"maxmemory-policy": memory.get("maxmemory_policy", f"unknown ({fault})")}
        policy = config.get("maxmemory-policy")
        if policy != "noeviction":
            raise LedgerMisconfigured(f"maxmemory-policy is {policy}, which drops claims: set it to noeviction.")
        replicas = int((await self._client.info("replication")).get("connected_slaves", 0))
        if replicas and int(config.get("min-replicas-to-write", 1)) < 1:
            raise LedgerMisconfigured("Redis has replicas but min-replicas-to-write is 0: set it to 1.")

    async def _load(self) -> None:
        names = [_text(lib["library_name"]) for lib in map(_pairs, await self._client.function_list())]
        if self._name not in names:
            try:
                await self._client.function_load(self._code)
            except ResponseError as fault:
                if "already exists" not in str(fault):
                    raise
        for name in names:
            if outdated(name):
                await self._client.function_delete(name)

    async def close(self) -> None:
        for client in (self._client, self._blocking):
            await client.aclose()
            # A client does not close a pool that it was given.
            await client.connection_pool.disconnect()

    async def _call(self, function: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.fcall(f"{self._name}_{function}", 1, self._prefix, *args)
                still_wanted()
                return answer
        except ResponseError as fault:
            raise self._told(fault) from fault
        except (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError) as fault:
            raise LedgerUnavailable(str(fault) or type(fault).__name__) from fault

    @staticmethod
    def _told(fault: ResponseError) -> Exception:
        text = str(fault)
        if text.startswith("STALETERM"):
            return StaleTerm(text)
        if text.startswith("STALE"):
            return StaleGeneration(text)
        if text.startswith(("LOADING", "NOREPLICAS", "READONLY", "MASTERDOWN", "BUSY", "OOM", "CLUSTERDOWN")):
            return LedgerUnavailable(text)
        if "Function not found" in text:
            return StaleGeneration("the function library is gone: open again")
        return fault

    def _adopt(self, reply: Sequence[int]) -> LedgerState:
        generation, whole, term = reply
        self._generation = int(generation)
        return LedgerState(generation=self._generation, whole=bool(whole), term=int(term))

    async def state(self) -> LedgerState:
        return self._adopt(await self._call("state"))

    # -- the watcher ------------------------------------------------------------------------------------------------
    async def begin_rebuild(self, term: int) -> LedgerState:
        return self._adopt(await self._call("begin_rebuild", term, self._run, LAYOUT))

    async def whole(self, term: int) -> LedgerState:
        return self._adopt(await self._call("whole", self._generation, term, self._run))

    async def mark(self) -> int:
        return int(await self._call("mark"))

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
            await self._call("nodes_seen", self._generation, term, _encode(rows))

    async def nodes_gone(self, names: Sequence[str], term: int) -> None:
        for batch in _batches(names):
            await self._call("nodes_gone", self._generation, term, _encode(batch))

    async def tasks_seen(self, tasks: Sequence[TaskSeen], term: int) -> Sequence[str]:
        disputed: list[str] = []
        for batch in _batches(tasks):
            disputed += map(_text, await self._call("tasks_seen", self._generation, term, _encode(batch)))
        return disputed

    async def tasks_gone(self, uids: Sequence[str], term: int) -> None:
        for batch in _batches(uids):
            await self._call("tasks_gone", self._generation, term, self._slack_ms, _encode(batch))

    async def sweep(self, mark: int, listed: Sequence[str], term: int) -> Sequence[str]:
        there = frozenset(listed)
        freed: list[str] = []
        cursor = "0"
        while True:
            after, uids = await self._call("sweep_page", cursor, mark, BATCH)
            missing = [uid for uid in map(_text, uids) if uid not in there]
            for batch in _batches(missing):
                reply = await self._call("sweep_free", self._generation, term, self._slack_ms, mark, _encode(batch))
                freed += map(_text, reply)
            cursor = _text(after)
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
            await self._call("queues_seen", self._generation, term, _encode(batch), b"[]")
        for paths in _batches(gone):
            await self._call("queues_seen", self._generation, term, b"[]", _encode(paths))

    # -- placement --------------------------------------------------------------------------------------------------
    async def take(self, partition: int) -> Taken:
        epoch, *rows = await self._call("take", self._generation, partition)
        planned: list[Plan] = []
        writing: list[Plan] = []
        evictions: list[EvictionPlan] = []
        for kind, text, *states in rows:
            if _text(kind) == "v":
                evictions.append(_eviction(text))
                continue
            plan = _plan(text)
            for out, claims in zip((planned, writing), states, strict=True):
                if claims:
                    out.append(_narrowed(plan, frozenset(map(_text, claims))))
        return Taken(epoch=int(epoch), planned=tuple(planned), writing=tuple(writing), evictions=tuple(evictions))

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Committed]:
        out: list[Committed] = []
        for batch in _plan_batches(plans):
            out += _answers(await self._call("commit", self._planned_ms, *map(_encode, batch)))
        return out

    async def commit_evictions(self, plans: Sequence[EvictionPlan]) -> Sequence[Committed]:
        out: list[Committed] = []
        for batch in _plan_batches(plans):
            out += _answers(await self._call("commit_evictions", self._cap_ms, self._slack_ms, *map(_encode, batch)))
        return out

    async def drop(self, job: str, claims: Sequence[str], generation: int) -> None:
        for batch in _batches(claims):
            await self._call("drop", generation, _encode(batch), job)

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
            out += _refusal_lists(await self._call("begin", self._writing_ms, _encode(rows)))
        return out

    async def confirm(self, claims: Mapping[str, str], generation: int) -> None:
        for batch in _batches(list(claims.items())):
            await self._call("confirm", generation, _encode(batch))

    async def release(self, claims: Sequence[str], generation: int) -> None:
        for batch in _batches(claims):
            await self._call("release", generation, _encode(batch))

    async def writing(self, claims: Sequence[str]) -> frozenset[str]:
        found: set[str] = set()
        for batch in _batches(claims):
            found.update(map(_text, await self._call("writing", self._generation, _encode(batch))))
        return frozenset(found)

    # -- preemptor --------------------------------------------------------------------------------------------------
    async def begin_evict(self, plan: EvictionPlan) -> Mapping[str, Refusal]:
        uids = _encode([v.uid for v in plan.victims])
        return _refusals(await self._call("begin_evict", plan.generation, plan.id, uids))

    async def unmark(self, plan: str, uids: Sequence[str], generation: int) -> None:
        for batch in _batches(uids):
            await self._call("unmark", generation, plan, _encode(batch))

    # -- anybody ----------------------------------------------------------------------------------------------------
    async def expire(self, limit: int = BATCH) -> Sequence[Due]:
        due: list[Due] = []
        for state, claim, task, text in await self._call("expire", self._generation, min(limit, BATCH), self._rearm_ms):
            name = _text(claim)
            plan = _narrowed(_plan(text), frozenset((name,))) if text else None
            due.append(Due(claim=name, state=_text(state), plan=plan, task=_text(task)))
        return due

    async def tail(self, position: str, wait_s: float = 0.5) -> StreamBatch:
        if not position:
            return StreamBatch(position="", lost=True)
        start = int(position)
        try:
            async with asyncio.timeout(wait_s + self._timeout_s):
                # BLOCK 0 would wait for ever.
                reply = await self._blocking.xread(
                    {f"{self._prefix}:stream": f"{start}-1"}, count=BATCH, block=max(1, int(wait_s * 1000))
                )
        except ResponseError as fault:
            raise self._told(fault) from fault
        except (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError) as fault:
            raise LedgerUnavailable(str(fault) or type(fault).__name__) from fault
        entries = reply[0][1] if reply else []
        if not entries:
            _, revision = await self._call("position")
            # A revision behind ours is an emptied server. One ahead of ours may just have been written: read on.
            return StreamBatch(position=position, lost=int(revision) < start)
        nodes: list[NodeUse] = []
        queues: list[QueueUse] = []
        for entry, fields in entries:
            at = int(_text(entry).partition("-")[0])
            if at != start + 1:
                return StreamBatch(position=position, lost=True)
            start = at
            by_name = {_text(k): v for k, v in fields.items()}
            nodes += _node_uses(by_name["n"])
            queues += _queue_uses(by_name["q"])
        return StreamBatch(position=str(start), nodes=tuple(nodes), queues=tuple(queues))

    async def dump(self, cursor: str = "") -> DumpPage:
        position, kind, scan = cursor.split("|") if cursor else ("", "u", "0")
        revision, after, uses = await self._call("dump", kind, scan, BATCH)
        position = position or _text(revision)
        scan = _text(after)
        if scan != "0":
            following = f"{position}|{kind}|{scan}"
        else:
            following = f"{position}|q|0" if kind == "u" else ""
        if kind == "u":
            return DumpPage(cursor=following, position=position, nodes=_node_uses(uses))
        return DumpPage(cursor=following, position=position, queues=_queue_uses(uses))

    async def holders(self, cursor: str = "") -> tuple[str, Sequence[Holder]]:
        kind, scan = cursor.split("|") if cursor else ("c", "0")
        after, page = await self._call("holders", kind, scan, BATCH)
        scan = _text(after)
        if scan != "0":
            return f"{kind}|{scan}", _holders(page)
        kind = {"c": "e", "e": "t", "t": ""}[kind]
        return (f"{kind}|0" if kind else ""), _holders(page)

    async def all_holders(self) -> AsyncIterator[Holder]:
        cursor = ""
        while True:
            cursor, page = await self.holders(cursor)
            for holder in page:
                yield holder
            if not cursor:
                return


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


def _text(value: bytes | str | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pairs(row: Any) -> dict[str, Any]:
    """RESP2 tells a map as a flat list."""
    if isinstance(row, dict):
        return {_text(k): v for k, v in row.items()}
    return {_text(row[i]): row[i + 1] for i in range(0, len(row), 2)}


def _run_id(info: Any) -> str:
    text = _text(info) if isinstance(info, bytes | str) else ""
    return next((line[7:].strip() for line in text.splitlines() if line.startswith("run_id:")), "")
