"""A process: one sentence for a wrong configuration, an orderly end for a signal."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from libs.host import process
from libs.host.open import Opened
from libs.host.parts import Parts, not_opened
from libs.host.probes import Probes
from libs.host.settings import CommonSettings, WrongSettings, read_settings
from libs.runtime.clock import SystemClock
from libs.runtime.lifecycle import Health
from services.watcher.settings import WatcherSettings


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("KAFKA_BOOTSTRAP", "kafka", "DRYSTONE_KAFKA_BOOTSTRAP must be host:port"),
        ("REDIS_URL", "redis.example:6379", "DRYSTONE_REDIS_URL must begin with"),
        ("HTTP_PORT", "eighty", "DRYSTONE_HTTP_PORT: input should be a valid integer"),
        ("KUBECONFIG", "/not/there", "DRYSTONE_KUBECONFIG names no readable file"),
        ("KAFKA_SECURITY", "SASL_SSL", "SASL needs DRYSTONE_KAFKA_SASL_USERNAME"),
        ("KAFKA_CA_FILE", "/not/there", "DRYSTONE_KAFKA_CA_FILE names no readable file"),
    ],
)
def test_a_wrong_setting_is_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv("DRYSTONE_" + name, value)
    with pytest.raises(WrongSettings) as refused:
        read_settings(CommonSettings)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("research", "DRYSTONE_TENANTS is no JSON."),
        (
            '[{"topic": "drystone.plans"}]',
            "DRYSTONE_TENANTS[0]: the topic drystone.plans is between Drystone's services.",
        ),
        ('[{}, {"name": "B"}]', "DRYSTONE_TENANTS[1].name: string should match pattern"),
        ('[{"name": "a"}, {"name": "b"}]', "DRYSTONE_TENANTS: the topic drystone.jobs belongs to two tenants."),
    ],
)
def test_a_wrong_tenant_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    monkeypatch.setenv("DRYSTONE_TENANTS", value)
    with pytest.raises(WrongSettings) as refused:
        read_settings(WatcherSettings)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"KAFKA_CA_FILE": __file__}, "DRYSTONE_KAFKA_CA_FILE needs DRYSTONE_KAFKA_SECURITY SSL or SASL_SSL"),
        (
            {"REDIS_CERT_FILE": __file__},
            "DRYSTONE_REDIS_CERT_FILE needs a DRYSTONE_REDIS_URL that begins with rediss://",
        ),
        (
            {"KAFKA_SECURITY": "SSL", "KAFKA_KEY_FILE": __file__},
            "DRYSTONE_KAFKA_KEY_FILE needs DRYSTONE_KAFKA_CERT_FILE",
        ),
        (
            {"KAFKA_SECURITY": "SSL", "KAFKA_CA_FILE": __file__},
            "DRYSTONE_KAFKA_CA_FILE: no certificate or key that can be read",
        ),
        (
            {"REDIS_URL": "rediss://redis:6379/0", "REDIS_CERT_FILE": __file__},
            "DRYSTONE_REDIS_CERT_FILE: no certificate or key that can be read",
        ),
    ],
)
def test_certificates_that_would_not_be_used_or_cannot_be_are_refused(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], words: str
) -> None:
    for name, value in said.items():
        monkeypatch.setenv("DRYSTONE_" + name, value)
    with pytest.raises(WrongSettings) as refused:
        read_settings(CommonSettings)
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_a_password_in_the_url_is_a_secret_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYSTONE_REDIS_URL", "redis://user:p%40ss@redis:6379/0")
    assert {"p@ss", "p%40ss"} <= set(read_settings(CommonSettings).secrets)


def test_secrets_are_not_in_what_settings_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYSTONE_REDIS_PASSWORD", "hunter2")
    assert "hunter2" not in repr(read_settings(CommonSettings))


def test_a_part_that_was_not_opened_says_so() -> None:
    kube = not_opened("kube", "metrics-collector")
    with pytest.raises(AttributeError, match="metrics-collector does not open the kube"):
        kube.call  # noqa: B018


def test_a_service_process_refuses_a_wrong_setting_without_a_trace() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.metrics_collector"],
        env={**os.environ, "DRYSTONE_SHARD": "4"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "metrics-collector: DRYSTONE_SHARD must be below DRYSTONE_SHARDS.\n"


class _Worker:
    name = "worker"

    def __init__(self, *, faulty: bool = False, returns: bool = False) -> None:
        self.faulty, self.returns = faulty, returns
        self.finished = False

    async def serve(self, stop: asyncio.Event) -> None:
        if self.faulty:
            raise OSError("disk on fire")
        if not self.returns:
            os.kill(os.getpid(), signal.SIGTERM)
            await stop.wait()
            await asyncio.sleep(0.05)  # what is in hand
        self.finished = True

    def health(self) -> Health:
        return Health(ready=True)


@pytest.mark.parametrize(("worker", "code"), [(_Worker(), 0), (_Worker(faulty=True), 1), (_Worker(returns=True), 1)])
def test_exit_codes_tell_an_ordinary_stop_from_a_fault(
    monkeypatch: pytest.MonkeyPatch, worker: _Worker, code: int
) -> None:
    monkeypatch.setenv("DRYSTONE_HTTP_PORT", "0")

    def build(_settings: CommonSettings, _parts: Parts) -> _Worker:
        return worker

    assert process.main("worker", CommonSettings, build, needs=()) == code
    assert worker.finished == (not worker.faulty)


class TestWhatHealthSays:
    """Of a service on parts that may be away, and of a reader that nobody reads on from."""

    class Bus:
        healthy, left_s = True, 0.0
        faults: tuple[str, ...] = ()

    def state(self) -> tuple[process._State, "TestWhatHealthSays.Bus", Probes]:
        bus, clock = self.Bus(), SystemClock()
        parts = Parts(bus=not_opened("bus", "w"), ledger=not_opened("ledger", "w"), kube=not_opened("kube", "w"))
        state = process._State()
        state.service, state.probes = _Worker(), Probes(clock, limit_s=0.05)
        state.opened = Opened(parts, bus)  # type: ignore[arg-type]
        return state, bus, state.probes

    def test_nothing_is_served_before_the_parts_are_open(self) -> None:
        health = process._State().health()
        assert (health.ready, health.alive) == (False, True)

    async def test_a_part_that_does_not_answer_shows_at_once_and_makes_unready_after_its_limit(self) -> None:
        state, _, probes = self.state()
        away = True

        async def ask() -> None:
            if away:
                raise OSError("connection refused")

        probes.add("ledger", ask)
        assert state.health().ready
        asking = asyncio.create_task(probes.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        health = state.health()
        assert health.detail["ledger"] == "no answer for 0 s: connection refused"
        assert health.ready, "it may be a moment's matter"
        await asyncio.sleep(0.1)
        assert (state.health().ready, state.health().alive) == (False, True)
        away = False
        await asyncio.sleep(0.1)
        assert state.health().ready
        asking.cancel()

    async def test_a_task_that_stands_still_is_cured_by_a_restart_unless_a_server_is_away(self) -> None:
        state, bus, probes = self.state()
        bus.left_s = process.LEFT_S + 1
        health = state.health()
        assert (health.ready, health.alive, health.detail["state"]) == (True, False, "stands still")

        async def ask() -> None:
            raise OSError("connection refused")

        probes.add("API server", ask)
        asking = asyncio.create_task(probes.run())
        await asyncio.sleep(0.01)
        assert state.health().alive, "it waits, as everybody does"
        asking.cancel()

    def test_a_broken_bus_says_for_how_long(self) -> None:
        state, bus, _ = self.state()
        bus.healthy, bus.faults = False, ("plans has stopped polling",)
        assert state.health().detail["bus"] == "for 0 s: plans has stopped polling"
        assert not state.health().ready


def test_an_event_loop_that_stands_still_writes_where(tmp_path: Path) -> None:
    """In a process of its own: the words go to its standard error."""
    program = (
        "import asyncio, time\n"
        "from libs.host import process\n"
        "process.STILL_S = 0.2\n"
        "async def main():\n"
        "    turning = asyncio.create_task(process._turning())\n"
        "    await asyncio.sleep(0)\n"
        "    time.sleep(0.6)\n"
        "    turning.cancel()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "most recent call first" in done.stderr
    assert "in main" in done.stderr
