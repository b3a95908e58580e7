"""Kept connections to an API server: what a dead, slow, chatty or garbled one does to requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from libs.kube import channel as lean
from libs.kube.channel import Address, Channels, Lost, NotSent

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server(serve: Serve, limit: int = 4) -> AsyncIterator[Channels]:
    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(quietly, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    channels = Channels(Address(host, port, None), limit)
    try:
        yield channels
    finally:
        await channels.close()
        listening.close()
        await listening.wait_closed()


async def asked(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def test_requests_share_kept_connections_and_never_more_than_the_limit() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await asked(reader)
            await asyncio.sleep(0.001)
            writer.write(OK)

    async with server(serve, limit=3) as channels:
        replies = await asyncio.gather(*[channels.request(REQUEST, idempotent=False) for _ in range(30)])
    assert {(r.status, r.body) for r in replies} == {(200, b"ok")}
    assert opened == 3


async def test_an_answer_in_pieces_and_chunks_is_one_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        for piece in (b"HTTP/1.1 429 Too Many\r\nRetry-Af", b"ter: 7\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(b"c\r\n2\r\nde\r\n0\r\n\r\n")
        await asked(reader)

    async with server(serve) as channels:
        reply = await channels.request(REQUEST, idempotent=False)
    assert (reply.status, reply.body, reply.retry_after) == (429, b"abcde", "7")


async def test_a_write_on_a_kept_connection_that_just_died_is_lost_not_repeated_and_a_read_is_repeated() -> None:
    seen: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        seen.append(len(seen))
        writer.write(OK)
        await asked(reader)  # the second request gets no answer: the connection ends
        seen.append(len(seen))

    async with server(serve) as channels:
        await channels.request(REQUEST, idempotent=False)
        with pytest.raises(Lost):
            await channels.request(REQUEST, idempotent=False)
        assert len(seen) == 2, "the write was sent once"
        await channels.request(REQUEST, idempotent=False)
        assert (await channels.request(REQUEST, idempotent=True)).status == 200


async def test_whoever_stops_waiting_takes_the_connection_along_so_no_answer_reaches_another() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await asked(reader)
        if b"slow" in request:
            await asyncio.sleep(0.1)
            writer.write(OK.replace(b"ok", b"no"))
        while True:
            writer.write(OK)
            await asked(reader)

    async with server(serve, limit=1) as channels:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await channels.request(REQUEST.replace(b"/x", b"/slow"), idempotent=False)
        assert (await channels.request(REQUEST, idempotent=False)).body == b"ok"


async def test_an_answer_nobody_asked_for_and_garbage_end_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await asked(reader)
        writer.write(b"\x00\x01 rubbish\r\n\r\n" if b"rubbish" in request else OK + OK)
        await asked(reader)

    async with server(serve) as channels:
        assert (await channels.request(REQUEST, idempotent=False)).body == b"ok"
        assert (await channels.request(REQUEST, idempotent=False)).body == b"ok"
        with pytest.raises(Lost):
            await channels.request(REQUEST.replace(b"/x", b"/rubbish"), idempotent=False)


async def test_a_server_that_says_close_is_not_asked_again_on_that_connection() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await asked(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()

    async with server(serve) as channels:
        for _ in range(3):
            assert (await channels.request(REQUEST, idempotent=False)).status == 200
    assert opened == 3


async def test_nobody_there_means_that_nothing_was_sent() -> None:
    async def serve(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        return

    async with server(serve) as channels:
        address = channels._address
    closed = Channels(address, 1)
    with pytest.raises(NotSent):
        await closed.request(REQUEST, idempotent=True)
    await closed.close()


async def test_a_connection_that_nobody_waits_for_any_more_serves_the_next_request() -> None:
    opened = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await asked(reader)
            writer.write(OK)

    async with server(serve) as channels:
        hurried = asyncio.create_task(channels.request(REQUEST, idempotent=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hurried.cancel()
        await asyncio.wait({hurried})
        await asyncio.sleep(0.05)
        assert (await channels.request(REQUEST, idempotent=False)).status == 200
    assert hurried.cancelled()
    assert opened == 1


async def test_what_a_burst_opened_goes_once_it_is_idle_and_what_is_used_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept for ever, each burst larger than those before would leave its connections behind, with their buffers."""
    monkeypatch.setattr(lean, "_IDLE_S", 0.05)
    opened = alive = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened, alive
        opened += 1
        alive += 1
        try:
            while True:
                await asked(reader)
                await asyncio.sleep(0.001)
                writer.write(OK)
        finally:
            alive -= 1

    async with server(serve, limit=8) as channels:
        await asyncio.gather(*[channels.request(REQUEST, idempotent=False) for _ in range(16)])
        assert (opened, alive) == (8, 8)
        async with asyncio.timeout(10):
            while alive > 1:
                await channels.request(REQUEST, idempotent=False)
        assert opened == 8
