"""Lists in pages: at once where something waits for them, and out of everybody's way where nothing does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from libs.kube import writes
from libs.kube.port import Answer
from libs.kube.writes import GENTLE_PAGE, PAGE, list_all

TAKES_S = 0.01


class Server:
    """Has so many objects, and takes its time for each page."""

    def __init__(self, objects: int) -> None:
        self.objects = objects
        self.limits: list[int] = []

    async def call(self, _method: str, _path: str, *, params: dict[str, str], **_: Any) -> Answer:
        await asyncio.sleep(TAKES_S)
        limit, begin = int(params["limit"]), int(params.get("continue", "0"))
        self.limits.append(limit)
        end = min(begin + limit, self.objects)
        meta = {"resourceVersion": "8", "continue": str(end) if end < self.objects else ""}
        items = [{"metadata": {"name": str(n)}} for n in range(begin, end)]
        return Answer(200, json.dumps({"metadata": meta, "items": items}).encode())


async def test_a_list_that_is_waited_for_is_read_in_large_pages_without_a_rest() -> None:
    server = Server(1200)
    listed = await list_all(server, "/x")  # type: ignore[arg-type]
    assert len(listed.items) == 1200
    assert server.limits == [PAGE] * 3


async def test_a_list_that_nobody_waits_for_rests_three_times_as_long_as_each_page_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writes, "RESTS_S", 1000.0)
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    server = Server(4 * GENTLE_PAGE)
    listed = await list_all(server, "/x", rest=rest)  # type: ignore[arg-type]
    assert len(listed.items) == 4 * GENTLE_PAGE
    assert server.limits == [GENTLE_PAGE] * 4
    assert len(rests) == 3, "not after the last page"
    assert all(seconds >= 2.9 * TAKES_S for seconds in rests)


async def test_the_rests_of_a_long_list_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "RESTS_S", 5 * TAKES_S)
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    await list_all(Server(10 * GENTLE_PAGE), "/x", rest=rest)  # type: ignore[arg-type]
    assert sum(rests) == pytest.approx(5 * TAKES_S)
    assert len(rests) < 9
