"""A line between one replica and one part, that can be cut: connections end, and new ones come to nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

_CHUNK: Final = 64 * 1024


class Line:
    """`address` is what the replica is told instead of the part's own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        if self._serving:
            await asyncio.wait(self._serving)
        await asyncio.sleep(0)  # what was aborted gives its socket back in the loop's next turn

    def cut(self) -> None:
        """Nothing gets through any more; who is connected learns of it by the end of the connection."""
        self._cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        self._cut = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        if self._cut:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._open -= {writer, back}
            for end in (writer, back):
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has ended; then both do."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()
