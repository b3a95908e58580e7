"""The real API server over HTTP/1.1 with kept connections. Raw bytes in and out: no models, no deserialisation.

Calls go through `libs.kube.channel`, which costs a fifth of a general client's CPU; watches, which are few and long, go
through aiohttp.

One call is one request, sent once. (A GET that met a kept connection which the server had just closed is sent again.)
Where the answer is missing, the write may or may not have happened and the Answer is `unsure`; only a connection that
was never made is known to have sent nothing, and says so (`unsure` False).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from libs.kube.channel import Address, Channels, Lost, NotSent
from libs.kube.errors import BadConfiguration
from libs.kube.identity import Identity, from_kubeconfig, in_cluster
from libs.kube.nesting import readable
from libs.kube.objects import Status, status_decoder
from libs.kube.plugin import PluginFault
from libs.kube.port import Answer, WatchBroken, WatchGone

_JSON: Final = "application/json"
_USER_AGENT: Final = "drystone"
#: The client waits this much longer than the server was told to, so that the server's own answer wins.
_SLACK_S: Final = 0.5
_READ: Final = 256 * 1024
#: Paths that need no quoting: nearly all.
_PLAIN: Final = re.compile(r"[A-Za-z0-9/._~:%-]+")
#: One watch event at most; etcd keeps 1.5 MiB per object.
_LINE_MOST: Final = 16 * 1024 * 1024


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_event_decoder: Final = msgspec.json.Decoder(_Event)


class KubeClient:
    """A `Kube`. Made inside a running loop's life; opens its connections with the first call."""

    def __init__(self, identity: Identity, *, connections: int = 64, user_agent: str = _USER_AGENT) -> None:
        self._identity = identity
        self._connections = connections
        self._user_agent = user_agent
        server = URL(identity.server)
        if not server.host or not server.port:
            raise BadConfiguration(f"{identity.server!r} is no address of an API server")
        tls = (identity.tls or ssl.create_default_context()) if server.scheme == "https" else None
        self._address = Address(server.host, server.port, tls, identity.server_name)
        self._netloc = server.raw_authority
        self._prefix = server.raw_path.rstrip("/")
        self._channels: Channels | None = None
        self._watch_session: aiohttp.ClientSession | None = None
        self._heads: dict[tuple[str, str], bytes] = {}

    @classmethod
    def from_kubeconfig(cls, path: str | Path, *, context: str = "", connections: int = 64) -> KubeClient:
        """Raises BadConfiguration with one clear sentence."""
        return cls(from_kubeconfig(Path(path), context), connections=connections)

    @classmethod
    def in_cluster(cls, *, connections: int = 64) -> KubeClient:
        return cls(in_cluster(), connections=connections)

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = _JSON,
        timeout_s: float = 5.0,
    ) -> Answer:
        writes = method != "GET"
        plugin = self._identity.token.plugin
        if plugin is not None and plugin.due:
            try:
                await plugin.renew()
            except PluginFault as fault:
                return Answer(0, str(fault).encode())
        query = f"{urlencode(params, quote_via=quote)}&timeout={timeout_s:g}s" if params else f"timeout={timeout_s:g}s"
        target = self._prefix + (path if _PLAIN.fullmatch(path) else quote(path, safe="/:%"))
        request = b"%s %s?%s HTTP/1.1\r\n%s" % (
            method.encode(),
            target.encode(),
            query.encode(),
            self._head(content_type if body is not None else ""),
        )
        request += b"Content-Length: %d\r\n\r\n%s" % (len(body), body) if body is not None else b"\r\n"
        try:
            async with asyncio.timeout(timeout_s + _SLACK_S):
                reply = await self._calls().request(request, idempotent=not writes)
        except NotSent as error:
            return Answer(0, str(error).encode())
        except TimeoutError:
            return Answer(0, b"no answer in time", unsure=writes)
        except Lost as error:
            return Answer(0, str(error).encode(), unsure=writes)
        if reply.status == 401 and plugin is not None:
            plugin.refused()
        retry_after = _seconds(reply.retry_after) if reply.status == 429 or reply.status >= 500 else None
        return Answer(reply.status, reply.body, writes and reply.status >= 500, retry_after)

    async def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        plugin = self._identity.token.plugin
        try:
            if plugin is not None and plugin.due:
                await plugin.renew()
            async with asyncio.timeout(silence_s):
                response = await self._watches().get(
                    self._url(path, params, "watch=true"),
                    headers=self._headers(),
                    allow_redirects=False,
                    server_hostname=self._identity.server_name,
                )
        except (aiohttp.ClientError, OSError, TimeoutError, PluginFault) as error:
            raise WatchBroken(f"{path}: {error!r}") from error
        try:
            if response.status == 401 and plugin is not None:
                plugin.refused()
            if response.status == 410:
                raise WatchGone(path)
            if response.status != 200:
                raise WatchBroken(f"{path}: {response.status}")
            async for event in _events(response.content, path, silence_s):
                yield event
        finally:
            # Not released to the pool: the server would go on sending.
            response.close()

    async def close(self) -> None:
        channels, session = self._channels, self._watch_session
        self._channels = self._watch_session = None
        if channels is not None:
            await channels.close()
        if session is not None:
            await session.close()
            # What was aborted gives its socket back in the loop's next turns: nobody else waits for that.
            for _ in range(3):
                await asyncio.sleep(0)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _url(self, path: str, params: Mapping[str, str] | None, last: str) -> URL:
        query = f"{urlencode(params, quote_via=quote)}&{last}" if params else last
        return URL(f"{self._identity.server}{path}?{query}", encoded=True)

    def _head(self, content_type: str) -> bytes:
        """Ready-made headers of a call. The token is looked at every time, because its file may have changed."""
        token = self._identity.token.read()
        known = self._heads.get((content_type, token))
        if known is None:
            lines = [f"Host: {self._netloc}", f"Accept: {_JSON}", f"User-Agent: {self._user_agent}"]
            if content_type:
                lines.append(f"Content-Type: {content_type}")
            if token:
                lines.append(f"Authorization: Bearer {token}")
            if any("\r" in line or "\n" in line for line in lines):
                raise BadConfiguration("the API server's token or address has a line break in it")
            known = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
            if len(self._heads) > 16:
                self._heads.clear()
            self._heads[content_type, token] = known
        return known

    def _headers(self) -> dict[str, str]:
        """Of a watch."""
        token = self._identity.token.read()
        known = {"Accept": _JSON, "User-Agent": self._user_agent}
        return {**known, "Authorization": f"Bearer {token}"} if token else known

    def _calls(self) -> Channels:
        if self._channels is None:
            self._channels = Channels(self._address, self._connections)
        return self._channels

    def _watches(self) -> aiohttp.ClientSession:
        """Watches have connections of their own: a dozen of them must not take the calls' places."""
        if self._watch_session is None:
            self._watch_session = self._open(0)
        return self._watch_session

    def _open(self, connections: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                ssl=self._identity.tls if self._identity.tls is not None else True,
                keepalive_timeout=60.0,
                ttl_dns_cache=30,
                # A request that was cut off leaves a TLS connection that waits for the server's good-bye: without
                # this it outlives us (mended in Python 3.12.8).
                enable_cleanup_closed=sys.version_info < (3, 12, 8),
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=_READ,
        )


# --- watch streams ------------------------------------------------------------------------------------------


async def _events(stream: aiohttp.StreamReader, path: str, silence_s: float) -> AsyncIterator[tuple[str, bytes]]:
    """Lines of the stream as events. All lines of one read come without a pause between them, so that a reader can
    batch them."""
    rest = b""
    while True:
        try:
            async with asyncio.timeout(silence_s):
                chunk = await stream.readany()
        except TimeoutError:
            raise WatchBroken(f"{path}: silent for {silence_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise WatchBroken(f"{path}: {error!r}") from error
        if not chunk:
            # A partial line at the end is an event that was cut off: the next watch brings it whole.
            return
        if b"\n" not in chunk:
            rest += chunk
            if len(rest) > _LINE_MOST:
                raise WatchBroken(f"{path}: an event of more than {_LINE_MOST} bytes")
            continue
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            if line:
                yield _split(readable(line), path)


def _split(line: bytes, path: str) -> tuple[str, bytes]:
    """(type, object) of one line. The API server always writes `{"type":"X","object":{...}}`, so the object is cut out
    without being parsed; anything else goes through the decoder."""
    kind, raw = "", b""
    if line.startswith(b'{"type":"') and line.endswith(b"}"):
        end = line.find(b'"', 9)
        if line.startswith(b'","object":', end):
            kind, raw = line[9:end].decode(), line[end + 11 : -1]
    if not kind:
        try:
            event = _event_decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise WatchBroken(f"{path}: not an event: {error}") from error
        kind, raw = event.type, bytes(event.object)
    if kind == "ERROR":
        try:
            status = status_decoder.decode(raw)
        except msgspec.MsgspecError:
            status = Status()
        if status.code == 410 or status.reason in ("Expired", "Gone"):
            raise WatchGone(status.message or path)
        raise WatchBroken(f"{path}: {status.code} {status.message}")
    return kind, raw


def _seconds(text: str | None) -> float | None:
    """Retry-After as seconds; its form as a date is not sent by API servers."""
    return float(text) if text and text.isascii() and text.isdecimal() and len(text) < 7 else None


__all__ = ["BadConfiguration", "KubeClient"]
