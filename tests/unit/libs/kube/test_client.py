"""The HTTP client against a server that misbehaves: every call ends in an Answer that is honest about what is known."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.kube.client import KubeClient
from libs.kube.errors import BadConfiguration
from libs.kube.identity import Identity, Token, from_kubeconfig
from libs.kube.outcomes import Outcome, classify, retry_after
from libs.kube.port import WatchBroken, WatchGone

Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(reply: Reply) -> AsyncIterator[tuple[KubeClient, list[bytes]]]:
    """A server that reads requests whole and answers as told; what it read is kept."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
                seen.append(head + await reader.readexactly(length))
                await reply(seen[-1], writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = KubeClient(Identity(f"http://127.0.0.1:{port}", None, Token("secret")))
    try:
        yield client, seen
    finally:
        await client.close()
        listening.close()


def answers(status: str, body: bytes = b"{}", headers: str = "") -> Reply:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)

    return reply


def streams(*chunks: bytes, end: bool = True) -> Reply:
    async def reply(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for chunk in chunks:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        if end:
            writer.write(b"0\r\n\r\n")

    return reply


async def test_one_request_with_the_servers_limit_and_our_token() -> None:
    async with server(answers("201 Created", b'{"ok":1}')) as (client, seen):
        answer = await client.call("POST", "/api/v1/x", b"{}", params={"a": "b,c=d"}, timeout_s=2.5)
        assert (answer.status, answer.body, answer.unsure) == (201, b'{"ok":1}', False)
    assert len(seen) == 1
    assert seen[0].startswith(b"POST /api/v1/x?a=b%2Cc%3Dd&timeout=2.5s HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in seen[0]


async def test_a_write_without_answer_is_unsure_and_not_sent_again() -> None:
    async def hang_up(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with server(hang_up) as (client, seen):
        answer = await client.call("POST", "/x", b"{}")
        assert classify(answer) is Outcome.UNSURE
        assert answer.unsure
    assert len(seen) == 1


async def test_a_write_that_is_never_answered_ends_in_time() -> None:
    async def silence(_: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with server(silence) as (client, _):
        async with asyncio.timeout(3):
            answer = await client.call("POST", "/x", b"{}", timeout_s=0.1)
        assert (answer.status, answer.unsure) == (0, True)


async def test_what_was_never_sent_is_known_not_to_have_happened() -> None:
    client = KubeClient(Identity("http://127.0.0.1:9", None, Token()))
    answer = await client.call("POST", "/x", b"{}")
    await client.close()
    assert (answer.status, answer.unsure) == (0, False)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        ("500 Internal Server Error", b"{}", Outcome.UNSURE),
        ("504 Gateway Timeout", b"{}", Outcome.UNSURE),
        ("409 Conflict", b'{"reason":"AlreadyExists"}', Outcome.EXISTS),
        ("409 Conflict", b'{"reason":"Conflict"}', Outcome.CONFLICT),
        ("404 Not Found", b"{}", Outcome.GONE),
        ("401 Unauthorized", b"{}", Outcome.THROTTLED),
        ("403 Forbidden", b"{}", Outcome.REFUSED),
        ("422 Unprocessable Entity", b"{}", Outcome.REFUSED),
        ("429 Too Many Requests", b"{}", Outcome.THROTTLED),
    ],
)
async def test_what_answers_mean(status: str, body: bytes, outcome: Outcome) -> None:
    async with server(answers(status, body, "Retry-After: 3\r\n")) as (client, _):
        answer = await client.call("POST", "/x", b"{}")
    assert classify(answer) is outcome
    assert retry_after(answer) == (3.0 if status[:3] in ("429", "500", "504") else None)


class TestWatch:
    async def collect(self, reply: Reply, silence_s: float = 5.0) -> list[tuple[str, bytes]]:
        async with server(reply) as (client, _):
            return [event async for event in client.watch("/w", params={}, silence_s=silence_s)]

    async def test_lines_cut_anywhere_come_whole(self) -> None:
        events = b"".join(b'{"type":"ADDED","object":{"n":"%d \\" }"}}\n' % n for n in range(50))
        chunks = [events[i : i + 7] for i in range(0, len(events), 7)]
        seen = await self.collect(streams(*chunks))
        assert seen == [("ADDED", b'{"n":"%d \\" }"}' % n) for n in range(50)]

    async def test_another_spelling_is_understood(self) -> None:
        assert await self.collect(streams(b'{ "object" : {"a": 1}, "type" : "MODIFIED" }\n')) == [
            ("MODIFIED", b'{"a": 1}')
        ]

    async def test_an_event_cut_off_by_the_end_is_left_to_the_next_watch(self) -> None:
        assert await self.collect(streams(b'{"type":"ADDED","object":{}}\n{"type":"ADD')) == [("ADDED", b"{}")]

    async def test_gone_inside_the_stream_and_in_the_status(self) -> None:
        gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
        for reply in (streams(gone), answers("410 Gone")):
            with pytest.raises(WatchGone):
                await self.collect(reply)

    async def test_silence_is_a_fault(self) -> None:
        with pytest.raises(WatchBroken, match="silent"):
            await self.collect(streams(b'{"type":"BOOKMARK","object":{}}\n', end=False), silence_s=0.1)

    async def test_rubbish_is_a_fault(self) -> None:
        for reply in (streams(b"<html>\n"), answers("500 Oops")):
            with pytest.raises(WatchBroken):
                await self.collect(reply)


class TestIdentity:
    def test_a_token_file_is_read_again_when_it_changes(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("one\n")
        token = Token(file=file)
        assert token.read() == "one"
        file.write_text("second\n")
        assert token.read() == "second"
        file.unlink()
        assert token.read() == "second"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("][", "cannot be read"),
            ("[]", "is no kubeconfig"),
            ("current-context: x", "no context named 'x'"),
            (
                "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
                " clusters: [{name: c, cluster: {server: 'https://a'}}],"
                " users: [{name: u, user: {exec: {command: e}}}]}",
                "`exec` needs `command` and `apiVersion`",
            ),
            (
                "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
                " clusters: [{name: c, cluster: {server: 'https://a'}}],"
                " users: [{name: u, user: {auth-provider: {name: gcp}}}]}",
                "`auth-provider` are not supported",
            ),
            (
                "{current-context: x, contexts: [{name: x, context: {cluster: c}}],"
                " clusters: [{name: c, cluster: {server: 'a:1'}}]}",
                "no usable `server`",
            ),
        ],
    )
    def test_a_bad_kubeconfig_gets_one_clear_sentence(self, tmp_path: Path, text: str, said: str) -> None:
        file = tmp_path / "config"
        file.write_text(text)
        with pytest.raises(BadConfiguration, match="kubeconfig") as error:
            from_kubeconfig(file)
        assert said in str(error.value)
