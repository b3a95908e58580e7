"""What an operator sees, and what nobody may see."""

import aiohttp
import pytest

from libs.observe import logs, metrics, trace
from libs.observe.health import HealthServer
from libs.runtime.lifecycle import Health


def test_secrets_are_hidden_by_name_by_value_and_in_urls() -> None:
    logs.hide("hunter2-long")
    event = logs.redact(
        None,
        "info",
        {
            "event": "cannot log in with hunter2-long",
            "sasl_password": "x",
            "url": "redis://user:pw@host/0",
            "settings": {"api_key": "k", "port": 1},
            "fault": ValueError("hunter2-long"),
            "pods": 3,
        },
    )
    assert "hunter2" not in str(event)
    assert event["sasl_password"] == "[hidden]"
    assert event["url"] == "redis://user:[hidden]@host/0"
    assert event["settings"] == {"api_key": "[hidden]", "port": 1}
    assert event["pods"] == 3


def test_a_metric_is_made_once_and_another_kind_is_refused() -> None:
    first = metrics.counter("test_things_total", "Things.", ("kind",))
    assert metrics.counter("test_things_total", "Things.", ("kind",)) is first
    with pytest.raises(ValueError, match="exists as Counter"):
        metrics.gauge("test_things_total", "Things.", ("kind",))
    first.labels("a").inc()
    assert b'test_things_total{kind="a"}' in metrics.render()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
    ],
)
def test_an_invalid_traceparent_is_not_passed_on(header: str) -> None:
    assert trace.parse(header) is None
    assert trace.valid(header) == ""


def test_a_trace_goes_on_as_it_came() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    assert trace.valid(parent) == parent


def test_of_a_later_version_is_passed_on_what_this_one_knows() -> None:
    later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-brings"
    assert trace.valid(later) == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_health_is_told_over_http() -> None:
    state = Health(ready=False, detail={"state": "starting"})
    server = HealthServer("watcher", lambda: state)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            assert (await session.get("/healthz")).status == 200
            answer = await session.get("/readyz")
            assert (answer.status, (await answer.json())["detail"]) == (503, {"state": "starting"})
            state = Health(ready=True)
            assert (await session.get("/readyz")).status == 200
            state = Health(ready=True, alive=False)
            assert (await session.get("/healthz")).status == 503
            assert "process_cpu_seconds_total" in await (await session.get("/metrics")).text()
    finally:
        await server.stop()
