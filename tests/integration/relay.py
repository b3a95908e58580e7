"""A TCP relay whose connections can go silent without being closed: the fault that no error tells of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiokafka import client as kafka_client


class Relay:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        self.port = 0
        #: Bytes that were swallowed: the silence was in somebody's way.
        self.swallowed = 0
        self._links: list[_Link] = []
        self._mute = False

    def mute(self, *, newcomers: bool = False) -> None:
        """From now on nothing passes over the connections that there are; with `newcomers`, over later ones neither."""
        self._mute = newcomers
        for link in self._links:
            link.mute = True

    def speak(self) -> None:
        """Connections that are made from now on work. Those that were silent stay so."""
        self._mute = False

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for link in self._links:
                link.close()
            await asyncio.gather(*(task for link in self._links for task in link.tasks), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, self._mute)
        self._links.append(link)
        link.writers.append(writer)
        try:
            there, back = await asyncio.open_connection(*self._to)
        except OSError:
            link.close()
            return
        link.writers.append(back)
        link.tasks = [
            asyncio.create_task(link.pass_on(reader, back), name="relay there"),
            asyncio.create_task(link.pass_on(there, writer), name="relay back"),
        ]


class _Link:
    """One connection and its continuation. Mute, it still takes what is sent and acknowledges it as TCP does."""

    def __init__(self, relay: Relay, mute: bool) -> None:
        self.mute = mute
        self.writers: list[asyncio.StreamWriter] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._relay = relay

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 * 1024):
                if self.mute:
                    self._relay.swallowed += len(data)
                else:
                    writer.write(data)
                    await writer.drain()
        if not self.mute:
            writer.close()

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for writer in self.writers:
            writer.close()


def lead_kafka_through(relay: Relay, client_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker tells clients where it is to be reached, so a relay must be put in where they connect."""
    connect = kafka_client.create_conn

    async def create_conn(host: str, port: int, **arguments: object) -> object:
        if arguments["client_id"] == client_id:
            host, port = "127.0.0.1", relay.port
        return await connect(host, port, **arguments)

    monkeypatch.setattr(kafka_client, "create_conn", create_conn)
