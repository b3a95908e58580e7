"""Short requests over kept HTTP/1.1 connections: one request at a time on each, none retried here.

A scheduler's cost is its requests to the API server, one a pod, so their client is lean: the C parser of `httptools`
reads answers, a request is two joined byte strings, and nothing is made per request but a future. Guarantees: at most
`limit` requests at a time; a request is sent once (a GET once more where a kept connection turns out to be dead);
whoever stops waiting closes the connection, so that an answer never reaches another request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Final

import httptools

_IDLE_S: Final = 60.0
_CONNECT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """`tls` None speaks plain HTTP; `name` is what the certificate must say, where it is not the host's."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """`retry_after` is the header's text, empty where there is none."""

    status: int
    body: bytes
    retry_after: str = ""


class NotSent(Exception):
    """No connection could be made: the request never left."""


class Lost(Exception):
    """The connection ended after the request was sent: whether it had an effect is unknown."""


class Channel(asyncio.Protocol):
    """One connection. `send` is for one caller at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._retry_after = ""
        self._why: Exception | None = None
        self.usable = True
        self.used = False
        self.idle_since = 0.0
        self.ended = self._loop.create_future()

    async def send(self, request: bytes) -> Reply:
        """Raises Lost. A caller that is cancelled leaves a connection that is of no use to anybody."""
        if self._transport is None or not self.usable:
            raise Lost(self._said())
        self.used = True
        answer: asyncio.Future[Reply] = self._loop.create_future()
        self._answer = answer
        self._transport.write(request)
        try:
            return await answer
        except BaseException:
            self.abort()
            raise
        finally:
            self._answer = None

    def abort(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _said(self) -> str:
        return repr(self._why) if self._why is not None else "the connection was closed"

    # -- called by the loop -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._why = self._why or exc
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(self._said()))
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._why = error
            self.abort()

    # -- called by the parser -----------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        reply = Reply(self._parser.get_status_code(), body, self._retry_after)
        self._body, self._retry_after = [], ""
        if not self._parser.should_keep_alive():
            self.usable = False
        if self._answer is None or self._answer.done():
            # Nobody asked: what follows on this connection cannot be told apart any more.
            self.abort()
        else:
            self._answer.set_result(reply)


class Channels:
    """Connections to one address, made when needed, kept while they are good and used. What the greatest burst opened
    goes again when it has been idle for a minute: a TLS connection holds up to 300 KiB here, and more at the server."""

    def __init__(self, address: Address, limit: int) -> None:
        self._address = address
        self._slots = asyncio.Semaphore(limit)
        self._idle: deque[Channel] = deque()
        self._all: set[Channel] = set()
        self._opening: set[asyncio.Task[Channel]] = set()

    async def request(self, request: bytes, *, idempotent: bool) -> Reply:
        """Raises NotSent or Lost. The time limit is the caller's."""
        async with self._slots:
            channel = self._kept() or await self._connect()
            reused = channel.used
            try:
                reply = await channel.send(request)
            except Lost:
                if not (idempotent and reused):
                    raise
                self._all.discard(channel)
                channel = await self._connect()
                reply = await channel.send(request)
            finally:
                self._back(channel)
            return reply

    def _kept(self) -> Channel | None:
        """The connection used last: the others grow old together and are closed."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            channel = self._idle.pop()
            if channel.usable and now - channel.idle_since < _IDLE_S:
                return channel
            channel.abort()
            self._all.discard(channel)
        return None

    async def _connect(self) -> Channel:
        """In a task of its own, which is not cut off: until Python 3.12 a connection that is cancelled while it is made
        leaves its socket open. Whoever stops waiting leaves the connection to the next request."""
        opening = asyncio.create_task(self._open(), name=f"connect {self._address.host}")
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._keep)
            raise

    def _keep(self, opening: asyncio.Task[Channel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._back(opening.result())

    async def _open(self) -> Channel:
        to = self._address
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, channel = await asyncio.get_running_loop().create_connection(
                    Channel,
                    to.host,
                    to.port,
                    ssl=to.tls,
                    server_hostname=(to.name or to.host) if to.tls is not None else None,
                )
        except OSError as error:  # faults of TLS and TimeoutError are ones
            raise NotSent(f"{to.host}:{to.port}: {error!r}") from error
        self._all.add(channel)
        return channel

    def _back(self, channel: Channel) -> None:
        now = asyncio.get_running_loop().time()
        if channel.usable:
            channel.idle_since = now
            self._idle.append(channel)
        else:
            channel.abort()
            self._all.discard(channel)
        # The one that has been idle longest stands first.
        if self._idle and now - self._idle[0].idle_since >= _IDLE_S:
            old = self._idle.popleft()
            old.abort()
            self._all.discard(old)

    async def close(self) -> None:
        """End every connection and wait until its socket is given back."""
        if self._opening:
            await asyncio.wait(self._opening, timeout=1.0)
        for opening in self._opening:
            opening.cancel()
        channels, self._all = self._all, set()
        self._idle.clear()
        for channel in channels:
            channel.abort()
        if channels:
            await asyncio.wait([channel.ended for channel in channels], timeout=1.0)
