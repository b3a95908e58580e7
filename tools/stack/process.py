"""Starts a program in the background, and ends exactly that one.

A process is remembered by its id and its start time, as an id alone is used again by the kernel. Signals go through a
file descriptor of the process that was checked first, so they cannot hit another one. Started programs outlive the
Python process that started them, have their own session (a Ctrl-C in the terminal does not reach them) and write to
their own log. Linux only.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.stack.errors import StackError

_TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process for all time: the id, and when it started (clock ticks after boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this id now; None if there is none or it has ended."""
        stat = _stat(pid)
        return None if stat is None else cls(pid, stat[1])

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        stat = _stat(self.pid)
        return stat is not None and stat[1] == self.started

    def signal(self, number: int) -> bool:
        """Sends a signal; False if the process has ended or its id belongs to another one by now."""
        with self._handle() as handle:
            if handle is None:
                return False
            try:
                signal.pidfd_send_signal(handle, number)
            except ProcessLookupError:
                return False
            return True

    def stop(self, patience: float) -> None:
        """Asks the process to end, kills it when it has not after `patience` seconds, and waits until it is gone."""
        with self._handle() as handle:
            if handle is not None:
                # A paused process would get the request only when it goes on.
                for number, limit in (((signal.SIGTERM, signal.SIGCONT), patience), ((signal.SIGKILL,), 10.0)):
                    with contextlib.suppress(ProcessLookupError):
                        for one in number:
                            signal.pidfd_send_signal(handle, one)
                    if select.select([handle], [], [], limit)[0]:
                        break
                else:
                    raise StackError(f"Process {self.pid} did not end after a kill.")
        _reap(self.pid)

    @contextlib.contextmanager
    def _handle(self) -> Iterator[int | None]:
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            yield None
            return
        try:
            # Checked after opening: from here on the handle stands for one process whatever happens to its id.
            yield handle if self.is_alive() else None
        finally:
            os.close(handle)


def spawn(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> ProcessId:
    """Starts a program that appends what it says to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # posix_spawn rather than subprocess: nobody waits for these, and a Popen that is dropped warns about that.
    pid = os.posix_spawn(
        command[0],
        list(command),
        {**os.environ, **(environment or {})},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # Python ignores a broken pipe; programs expect the default.
        setsigdef=[signal.SIGPIPE, signal.SIGINT],
        setsigmask=[],
    )
    process = ProcessId.of(pid)
    if process is None:
        _reap(pid)
        raise StackError(f"{Path(command[0]).name} ended at once; its last words are in {log}:\n{tail(log)}")
    return process


def wait_ready(name: str, process: ProcessId, log: Path, probe: Callable[[], bool], limit: float) -> None:
    """Returns when `probe` says yes; a StackError with the end of the log when the process ends or time is up."""
    deadline = time.monotonic() + limit
    while not probe():
        if not process.is_alive():
            _reap(process.pid)
            raise StackError(f"{name} ended while starting. The end of {log}:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise StackError(f"{name} was not ready after {limit:g} s. The end of {log}:\n{tail(log)}")
        time.sleep(0.05)


def tail(log: Path) -> str:
    """The last lines of a log, for an error message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"  {line[:400]}" for line in lines[-_TAIL_LINES:])


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time of a process that has not ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name is in brackets and may itself hold blanks and brackets; the fields after it do not.
    fields = text[text.rindex(")") + 2 :].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else (state, started)


def _reap(pid: int) -> None:
    """Takes the exit status of a child that has ended, so that it does not stay as a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
