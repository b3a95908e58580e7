"""Two releases at work on one Redis, as during a rolling upgrade: each calls the functions of its own library, on the
same keys.

The release before is the text of the last commit that had another one, where there is a history to take it from; the
release after is the present text under the next version number.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest
import redis.asyncio

from libs.domain.nodes import Gpu, Node
from libs.domain.plans import Assignment, Plan
from libs.domain.resources import Charge, GpuGrant
from libs.store import library as shipped
from libs.store.pages import all_holders
from libs.store.port import LedgerMisconfigured, LedgerState, Refusal, StaleGeneration, TaskSeen
from libs.store.redis import RedisLedger
from tests.integration.test_ledger_redis import Server

pytestmark = pytest.mark.real

ROOT: Final = Path(__file__).resolve().parents[2]
LUA: Final = "libs/store/lua"
Library = tuple[str, str]


def named(version: int, body: str) -> Library:
    """As `libs.store.library` names and heads a text."""
    name = f"drystone_{version}_{hashlib.sha256(body.encode()).hexdigest()[:8]}"
    return name, f"#!lua name={name}\n" + body.replace("@LIBRARY@", name)


def present() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / LUA).glob("*.lua")))


def before() -> str:
    """The last text in the history that differs from the present one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("no history to take the release before from")
        return done.stdout

    for commit in git("log", "-n", "20", "--format=%H", "--", LUA).split():
        names = sorted(n for n in git("ls-tree", "--name-only", commit, f"{LUA}/").split() if n.endswith(".lua"))
        text = "\n".join(git("show", f"{commit}:{name}") for name in names)
        if text and text != present():
            return text
    pytest.skip("the history has one text only")


RELEASES: Final[dict[str, Callable[[], tuple[Library, Library]]]] = {
    "the release before": lambda: (named(shipped.VERSION, before()), named(shipped.VERSION, present())),
    "the release after": lambda: (named(shipped.VERSION, present()), named(shipped.VERSION + 1, present())),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path)
    await made.start()
    yield made
    made.stop()


@pytest.fixture(params=RELEASES)
async def both(
    server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[RedisLedger, RedisLedger]]:
    """(older, newer), both open."""
    ledgers = []
    for each in RELEASES[request.param]():
        ledgers.append(client(server.url, each, monkeypatch))
        await ledgers[-1].open()
    yield ledgers[0], ledgers[1]
    for ledger in ledgers:
        await ledger.close()


def client(url: str, library: Library, monkeypatch: pytest.MonkeyPatch, layout: int = shipped.LAYOUT) -> RedisLedger:
    with monkeypatch.context() as patched:
        patched.setattr("libs.store.server.library", lambda: library)
        return RedisLedger(url)


def node(name: str) -> Node:
    gpus = tuple(Gpu(index=i, mib=1000) for i in range(8))
    return Node(name=name, uid=f"u-{name}", version="1", spec="d1", cpu=96_000, mem=1 << 20, pods=110, gpus=gpus)


def plan(name: str, gpus: range, state: LedgerState, epoch: int, on: str = "n1") -> Plan:
    charge = Charge(cpu=1000, mem=1024, gpus=tuple(GpuGrant(i, 1000, 1000) for i in gpus))
    assignment = Assignment(f"{name}.0", f"task-{name}", name, on, "d1", charge, version="1")
    return Plan(
        id=name,
        job=f"pod/{name}",
        job_uid="",
        namespace="default",
        queue="team",
        partition=3,
        epoch=epoch,
        generation=state.generation,
        gang=False,
        assignments=(assignment,),
    )


async def loaded(ledger: RedisLedger) -> LedgerState:
    await ledger.begin_rebuild(1)
    await ledger.nodes_seen([node("n1")], 1)
    return await ledger.whole(1)


async def test_what_one_release_claims_the_other_carries_on_to_the_end(both: tuple[RedisLedger, RedisLedger]):
    """A pod's whole life, each step by the other release."""
    old, new = both
    state = await loaded(old)
    assert await new.state() == state
    epoch = (await old.take(3)).epoch
    (answer,) = await old.commit([plan("a", range(4), state, epoch)])
    assert not answer.refused
    taken = await new.take(3)
    assert [p.id for p in taken.planned] == ["a"], "the new owner finds the outbox of the old one"
    assert await old.begin([plan("a", range(4), state, epoch)]) == [{}]
    assert await new.writing(("a.0",))
    await new.confirm({"a.0": "task-a"}, state.generation)
    seen = TaskSeen("task-a", "5", "n1", plan("a", range(4), state, epoch).assignments[0].charge, "team", claim="a.0")
    assert list(await old.tasks_seen([seen], 1)) == []
    assert [(h.state, h.task or h.id) for h in await all_holders(new)] == [("bound", "task-a")]
    await old.tasks_gone(["task-a"], 1)
    assert await all_holders(new) == []
    (late,) = await new.commit([plan("a", range(4), state, taken.epoch)])
    assert set(late.refused.values()) == {Refusal.TOMBSTONE}


async def test_no_device_is_given_twice_by_two_releases_at_once(both: tuple[RedisLedger, RedisLedger]):
    old, new = both
    state = await loaded(new)
    epoch = (await new.take(3)).epoch
    plans = [plan(f"p{n}", range(n % 8, n % 8 + 1), state, epoch) for n in range(64)]
    answers = await asyncio.gather(*((old, new)[n % 2].commit([one]) for n, one in enumerate(plans)))
    taken = [a.taken for (a,) in answers if a.taken]
    assert len(taken) == 8
    held = [grant.index for h in await all_holders(old) for grant in h.charge.gpus]
    assert sorted(held) == list(range(8))
    uses = {u.node: u for u in (await new.dump()).nodes}
    assert uses["n1"] == {u.node: u for u in (await old.dump()).nodes}["n1"]
    assert uses["n1"].pods == 8


async def test_the_stream_of_one_is_read_by_the_other(both: tuple[RedisLedger, RedisLedger]):
    old, new = both
    state = await loaded(old)
    position = (await new.dump()).position
    epoch = (await old.take(3)).epoch
    await old.commit([plan("a", range(2), state, epoch)])
    told = [use for use in (await new.tail(position)).nodes if use.node == "n1"]
    assert told
    assert told[-1].pods == 1


async def test_the_fences_hold_across_releases(both: tuple[RedisLedger, RedisLedger]):
    old, new = both
    state = await loaded(old)
    epoch = (await old.take(3)).epoch
    await new.state()
    await new.take(3)
    (answer,) = await old.commit([plan("a", range(1), state, epoch)])
    assert set(answer.refused.values()) == {Refusal.EPOCH}
    await new.begin_rebuild(2)
    with pytest.raises(StaleGeneration):
        await old.nodes_seen([node("n2")], 1)


async def test_an_older_release_that_starts_later_displaces_nothing(server: Server, monkeypatch: pytest.MonkeyPatch):
    """A roll-back, or a pod of the old release that is restarted in the middle of the upgrade."""
    newer, older = named(shipped.VERSION + 1, present()), named(shipped.VERSION, present())
    for each in (newer, older, newer, older):
        ledger = client(server.url, each, monkeypatch)
        await ledger.open()
        await ledger.close()
    assert await libraries(server.url) == {newer[0], older[0]}


async def test_two_releases_back_is_removed(server: Server, monkeypatch: pytest.MonkeyPatch):
    ancient = named(shipped.VERSION - 2, present())
    await load(server.url, ancient)
    ledger = client(server.url, named(shipped.VERSION, present()), monkeypatch)
    await ledger.open()
    await ledger.close()
    assert ancient[0] not in await libraries(server.url)


async def test_data_of_a_newer_layout_is_left_alone(both: tuple[RedisLedger, RedisLedger], server: Server):
    """A release that lays the keys out anew marks them; the one before must refuse them, not write into them."""
    old, _ = both
    await loaded(old)
    raw = redis.asyncio.from_url(server.url)
    await raw.hset("{drystone}:meta", "layout", shipped.LAYOUT + 1)
    await raw.aclose()
    late = RedisLedger(server.url)
    with pytest.raises(LedgerMisconfigured, match="newer layout"):
        await late.open()
    await late.close()


async def load(url: str, library: Library) -> None:
    raw = redis.asyncio.from_url(url)
    await raw.function_load(library[1])
    await raw.aclose()


async def libraries(url: str) -> set[str]:
    raw = redis.asyncio.from_url(url, protocol=2)
    found = await raw.function_list()
    await raw.aclose()
    return {name for row in found for name in [_field(row, "library_name")] if name.startswith("drystone_")}


def _field(row: object, name: str) -> str:
    flat = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))  # type: ignore[index]
    plain = {k.decode() if isinstance(k, bytes) else k: v for k, v in flat.items()}
    value = plain[name]
    return value.decode() if isinstance(value, bytes) else str(value)
