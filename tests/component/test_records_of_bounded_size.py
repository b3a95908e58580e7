"""What cannot be divided: an eviction plan is not begun, a mix forgets what is rare, a status loses its details."""

from __future__ import annotations

import msgspec
import pytest

from libs.bus.letters import MOST_STATUS, status_value
from libs.bus.pack import ALONE, cut
from libs.contracts.events import JobStatus, LearnedMix
from libs.domain.jobs import Phase
from libs.domain.verdicts import Kind, Verdict
from libs.engine.mix import MixState, Shape
from services.placement.learning import _record
from services.watcher.answers import for_good
from tests.component.placement_scene import NS, binder, fill, next_plans, placement, running, scene
from tests.unit.services.watcher.test_intake_parts import status


async def test_a_job_whose_evictions_no_record_could_tell_waits_without_evicting_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.placement.commits.ALONE", 100)
    async with scene() as s:
        await s.facts(s.node("n1", gpus=1))
        evictions = s.bus.follow(["drystone.evictions"], from_start=True)
        service = placement(s)
        async with running(service, binder(s)):
            await fill(s, s.pod("low"))
            await s.until(lambda: len(service.state.view.pods) == 1)
            await s.hint(s.pod("high", priority="high"))
            await s.until(lambda: s.told(f"pod/{NS}/high"))
            await s.until(lambda: s.condition("high"))
            assert await next_plans(evictions, 0.1) == []
            assert await s.earmarks() == 0, "nothing was begun"
        assert any("the eviction plan for it would have" in said.message for said in s.told(f"pod/{NS}/high"))


def test_a_mix_of_more_shapes_than_a_record_takes_keeps_the_most_frequent() -> None:
    counts = tuple((f"team-{n}" + "x" * 200, Shape(n, 1, 0, 0, ("model" * 10,)), n) for n in range(40_000))
    value = _record(3, MixState(counts, 40_000), ()).value or b""
    assert 0 < len(value) <= ALONE
    kept = [count.count for count in msgspec.json.decode(value, type=LearnedMix).counts]
    assert len(kept) >= 5_000
    assert min(kept) >= 40_000 - len(kept)


def test_a_status_that_says_too_much_keeps_what_it_is_and_is_cut_with_a_mark() -> None:
    verdict = Verdict(Kind.NOT_NOW, helps=("x" * 200_000,))
    said = JobStatus("\x00" * 9000, "job/a/b", "t", "a", Phase.PENDING, "Waiting", "y" * 90_000, verdict=verdict)
    value = status_value(said)
    assert len(value) <= MOST_STATUS
    told = msgspec.json.decode(value, type=JobStatus)
    assert (told.job, told.phase, told.reason, told.verdict) == ("job/a/b", Phase.PENDING, "Waiting", None)
    assert told.message.endswith("...")
    short = msgspec.structs.replace(said, id="a", message="b", verdict=None)
    assert status_value(short) == msgspec.json.encode(short), "others are as they were"
    assert cut("short") == "short"


@pytest.mark.parametrize(
    ("code", "reason", "message", "counts"),
    [
        pytest.param(404, "NotFound", 'trainingjobs.drystone.dev "x" not found', True, id="no such object"),
        pytest.param(404, "NotFound", "the server could not find the requested resource", False, id="no such CRD"),
        pytest.param(404, "", "", False, id="no such path"),
        pytest.param(403, "Forbidden", 'User "w" cannot delete resource "trainingjobs"', False, id="our rights"),
        pytest.param(403, "Forbidden", 'admission webhook "w" denied the request', True, id="a webhook's no"),
        pytest.param(429, "TooManyRequests", "later", False, id="load"),
        pytest.param(503, "", "", False, id="away"),
        pytest.param(200, "", "", True, id="served"),
    ],
)
def test_only_answers_about_the_object_make_an_events_time_run(
    code: int, reason: str, message: str, counts: bool
) -> None:
    assert for_good(status(code, reason, message)) is counts
