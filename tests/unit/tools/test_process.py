"""A process is ended only if it is the very one that was started."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tools.stack import StackError
from tools.stack.process import ProcessId, spawn, tail, wait_ready

SHELL = shutil.which("sh") or "/bin/sh"
Start = Callable[[str], ProcessId]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "program.log"


@pytest.fixture
def start(log: Path) -> Iterator[Start]:
    started: list[ProcessId] = []

    def run(script: str) -> ProcessId:
        started.append(spawn([SHELL, "-c", script], log))
        return started[-1]

    yield run
    for process in started:
        process.stop(0)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_started_process_is_alive_until_it_is_stopped(start: Start) -> None:
    process = start("exec sleep 60")
    assert process.is_alive()
    assert ProcessId.of(process.pid) == process
    process.stop(5)
    assert not process.is_alive()
    assert ProcessId.of(process.pid) is None


def test_the_id_of_another_process_is_left_alone(start: Start) -> None:
    process = start("exec sleep 60")
    reused = replace(process, started=process.started - 1)
    assert not reused.is_alive()
    assert not reused.signal(signal.SIGKILL)
    reused.stop(0)
    assert process.is_alive()


def test_a_process_that_ended_by_itself_is_not_alive(start: Start) -> None:
    process = start("exec sleep 0.05")
    eventually(lambda: not process.is_alive())
    assert not process.signal(signal.SIGTERM)
    process.stop(5)


def test_a_process_that_does_not_listen_is_killed(start: Start, log: Path) -> None:
    process = start("trap '' TERM; echo trapped; while :; do sleep 0.05; done")
    eventually(lambda: "trapped" in tail(log))
    began = time.monotonic()
    process.stop(0.2)
    assert not process.is_alive()
    assert time.monotonic() - began >= 0.2


def test_a_paused_process_can_be_asked_to_end(start: Start) -> None:
    process = start("exec sleep 60")
    process.signal(signal.SIGSTOP)
    assert process.is_alive()
    began = time.monotonic()
    process.stop(30)
    assert time.monotonic() - began < 10


def test_both_outputs_go_to_the_log_behind_what_is_there(start: Start, log: Path) -> None:
    log.parent.mkdir()
    log.write_text("before\n", encoding="utf-8")
    process = start("echo out; echo err >&2; exec sleep 60")
    eventually(lambda: "err" in tail(log))
    assert [line.strip() for line in tail(log).splitlines()] == ["before", "out", "err"]
    process.stop(5)


def test_waiting_ends_when_the_probe_says_yes(start: Start, log: Path) -> None:
    answers = iter([False, False, True])
    wait_ready("part", start("exec sleep 60"), log, lambda: next(answers), limit=10)


def test_waiting_ends_with_the_log_when_the_process_ends(start: Start, log: Path) -> None:
    process = start("echo no such flag >&2; sleep 0.05; exit 2")
    with pytest.raises(StackError, match=r"(?s)part ended while starting.*no such flag"):
        wait_ready("part", process, log, lambda: False, limit=10)


def test_waiting_ends_with_the_log_when_time_is_up(start: Start, log: Path) -> None:
    process = start("exec sleep 60")
    with pytest.raises(StackError, match=r"not ready after 0\.1 s"):
        wait_ready("part", process, log, lambda: False, limit=0.1)
    assert process.is_alive()
