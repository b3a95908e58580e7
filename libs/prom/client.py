"""Instant queries by PromQL. A fault is a value: the caller works on with what it knew and says so."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec


@dataclass(frozen=True, slots=True)
class PromFault:
    """One sentence. `passing`: asking again may help."""

    why: str
    passing: bool = True


class Sample(msgspec.Struct, frozen=True, gc=False):
    labels: dict[str, str]
    value: float
    at: float  # when Prometheus evaluated it, seconds since the epoch

    @property
    def name(self) -> str:
        return self.labels.get("__name__", "")


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Kind(msgspec.Struct):
    resultType: str = ""
    result: msgspec.Raw = msgspec.Raw()


class _Answer(msgspec.Struct):
    status: str
    data: _Kind = msgspec.field(default_factory=_Kind)
    error: str = ""


_answer = msgspec.json.Decoder(_Answer)
_series = msgspec.json.Decoder(list[_Series])


class PromClient:
    """`token` gives what a proxy in front of Prometheus wants to see as bearer token; it is asked at every query, as
    mounted tokens change. It may raise OSError. `tls`: whom to trust, where that is not the machine's own list."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        token: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._token = token
        self._tls: ssl.SSLContext | bool = tls or True
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def instant(self, query: str) -> list[Sample] | PromFault:
        """The vector that the query gives now."""
        body = await self._post("/api/v1/query", {"query": query})
        if isinstance(body, PromFault):
            return body
        try:
            answer = _answer.decode(body)
            if answer.status != "success":
                return PromFault(f"Prometheus refuses the query: {answer.error}", passing=False)
            if answer.data.resultType != "vector":
                return PromFault(f"the query gives a {answer.data.resultType}, not a vector", passing=False)
            return [Sample(s.metric, float(s.value[1]), s.value[0]) for s in _series.decode(answer.data.result)]
        except (msgspec.MsgspecError, ValueError) as error:
            return PromFault(f"Prometheus' answer cannot be read: {error}")

    async def metric_names(self, match: str) -> list[str] | PromFault:
        """Names of metrics that a series selector finds at present."""
        body = await self._post("/api/v1/query", {"query": f"count by (__name__) ({match})"})
        if isinstance(body, PromFault):
            return body
        try:
            answer = _answer.decode(body)
            if answer.status != "success":
                return PromFault(f"Prometheus refuses the query: {answer.error}", passing=False)
            return sorted(s.metric.get("__name__", "") for s in _series.decode(answer.data.result))
        except msgspec.MsgspecError as error:
            return PromFault(f"Prometheus' answer cannot be read: {error}")

    async def _post(self, path: str, form: dict[str, Any]) -> bytes | PromFault:
        try:
            token = self._token() if self._token else ""
        except OSError as error:
            return PromFault(f"the token for Prometheus cannot be read: {error}")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        try:
            async with self._session.post(self._url + path, data=form, headers=headers, ssl=self._tls) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return PromFault(f"Prometheus at {self._url} does not answer: {error!r}")
        # A refused query comes with 400 or 422 and says why in its body.
        if response.status in (200, 400, 422):
            return body
        return PromFault(
            f"Prometheus at {self._url} answers {response.status}",
            passing=response.status >= 500 or response.status == 429,
        )
