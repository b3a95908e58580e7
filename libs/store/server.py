"""A Redis server with our functions on it, or what stands in for one.

Guaranteed here: every connection compares the server's run id with the data set's before its first call (another run id
may have lost its last writes, so the ledger stops being whole until the watcher has rebuilt it); every call ends within
its time limit, with LedgerUnavailable where the effect is unknown; reads that wait use a client of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis.asyncio as aioredis
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from libs.runtime.tasks import still_wanted
from libs.store.library import LAYOUT, library, outdated
from libs.store.port import LedgerMisconfigured, LedgerUnavailable, StaleGeneration

#: Redis is there and takes no writes for now: its memory or its disk is full, it has become a replica or has none.
_NOT_NOW: Final = (OutOfMemoryError, ReadOnlyError, ClusterDownError)
_NOT_NOW_WORDS: Final = ("LOADING", "NOREPLICAS", "READONLY", "MASTERDOWN", "BUSY", "OOM", "CLUSTERDOWN", "MISCONF")


class StaleTerm(StaleGeneration):
    """Another watcher has led since: this one must stop writing."""


class Server:
    """`url` and `connection` are redis-py's own (rediss://, username, password, ssl_ca_certs, ...). `prefix` begins all
    keys. Clients that are handed in belong to an embedded server, which has nothing to be checked."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        timeout_s: float,
        connections: int,
        client: Any = None,
        blocking_client: Any = None,
        connection: Mapping[str, Any],
    ) -> None:
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._name, self._code = library()
        #: Run id of the server that was spoken to last.
        self.run = ""
        self._embedded = client is not None
        self.client: Any = client or self._connect(url, connections, timeout_s, connection)
        self._blocking: Any = blocking_client or self._connect(url, 2, None, connection)

    def _connect(self, url: str, connections: int, socket_timeout: float | None, options: Mapping[str, Any]) -> Any:
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
        self.run = run

    async def open(self) -> Sequence[int]:
        """Greet the server as a connection of ours does; (generation, whole, term) of its data set. Raises
        LedgerMisconfigured with one sentence where no waiting helps, else LedgerUnavailable."""
        try:
            async with asyncio.timeout(4 * self._timeout_s):
                if self._embedded:
                    self.run = "embedded"
                else:
                    await self._check_server()
                await self._load()
                hello = f"{self._name}_hello"
                reply: Sequence[int] = await self.client.fcall(hello, 1, self._prefix, self.run, LAYOUT)
                return reply
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
        info = await self.client.info("server")
        version = str(info.get("redis_version", "0"))
        self.run = str(info["run_id"])
        if int(version.split(".", 1)[0]) < 7:
            raise LedgerMisconfigured(f"Redis {version} has no functions: version 7.0 or newer is needed.")
        try:
            config = await self.client.config_get("maxmemory-policy", "min-replicas-to-write")
        except ResponseError as fault:
            # Managed servers hide CONFIG; INFO tells the policy everywhere.
            memory = await self.client.info("memory")
            config = {"maxmemory-policy": memory.get("maxmemory_policy", f"unknown ({fault})")}
        policy = config.get("maxmemory-policy")
        if policy != "noeviction":
            raise LedgerMisconfigured(f"maxmemory-policy is {policy}, which drops claims: set it to noeviction.")
        replicas = int((await self.client.info("replication")).get("connected_slaves", 0))
        if replicas and int(config.get("min-replicas-to-write", 1)) < 1:
            raise LedgerMisconfigured("Redis has replicas but min-replicas-to-write is 0: set it to 1.")

    async def _load(self) -> None:
        names = [text_of(lib["library_name"]) for lib in map(_pairs, await self.client.function_list())]
        if self._name not in names:
            try:
                await self.client.function_load(self._code)
            except ResponseError as fault:
                if "already exists" not in str(fault):
                    raise
        for name in names:
            if outdated(name):
                await self.client.function_delete(name)

    async def close(self) -> None:
        for client in (self.client, self._blocking):
            await client.aclose()
            # A client does not close a pool that it was given.
            await client.connection_pool.disconnect()

    async def call(self, function: str, *args: Any) -> Any:
        """One FCALL. Raises LedgerUnavailable where there was no answer, so that the effect is unknown; StaleGeneration
        where the data set or the library is another one; StaleTerm; redis-py's ResponseError for what we got wrong."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self.client.fcall(f"{self._name}_{function}", 1, self._prefix, *args)
                still_wanted()
                return answer
        except ResponseError as fault:
            raise self._told(fault) from fault
        except (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError) as fault:
            raise LedgerUnavailable(str(fault) or type(fault).__name__) from fault

    async def entries(self, after: int, most: int, wait_s: float) -> Sequence[tuple[bytes, Mapping[bytes, bytes]]]:
        """Up to `most` entries of the ledger's stream behind revision `after`; none where none came within `wait_s`
        seconds. Raises as `call`."""
        try:
            async with asyncio.timeout(wait_s + self._timeout_s):
                # BLOCK 0 would wait for ever.
                reply = await self._blocking.xread(
                    {f"{self._prefix}:stream": f"{after}-1"}, count=most, block=max(1, int(wait_s * 1000))
                )
        except ResponseError as fault:
            raise self._told(fault) from fault
        except (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError) as fault:
            raise LedgerUnavailable(str(fault) or type(fault).__name__) from fault
        return reply[0][1] if reply else ()

    @staticmethod
    def _told(fault: ResponseError) -> Exception:
        text = str(fault)
        if text.startswith("STALETERM"):
            return StaleTerm(text)
        if text.startswith("STALE"):
            return StaleGeneration(text)
        # Some words redis-py takes off the text and turns into classes.
        if isinstance(fault, _NOT_NOW) or text.startswith(_NOT_NOW_WORDS):
            return LedgerUnavailable(text)
        if "Function not found" in text:
            return StaleGeneration("the function library is gone: open again")
        return fault


def text_of(value: bytes | str | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pairs(row: Any) -> dict[str, Any]:
    """RESP2 tells a map as a flat list."""
    if isinstance(row, dict):
        return {text_of(k): v for k, v in row.items()}
    return {text_of(row[i]): row[i + 1] for i in range(0, len(row), 2)}


def _run_id(info: Any) -> str:
    text = text_of(info) if isinstance(info, bytes | str) else ""
    return next((line[7:].strip() for line in text.splitlines() if line.startswith("run_id:")), "")
