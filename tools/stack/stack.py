"""Starts, stops and disturbs one stack: real parts on the loopback address, with all their state in one folder.

Guarantees: `up` returns when every part answers, or leaves nothing running; each part keeps its ports for as long as
the stack is up, so a part that was stopped comes back where its clients expect it; `down` ends exactly the processes
that were started here, by id and start time, from this process or from another one (`attach`).
"""

import atexit
import logging
import shutil
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.stack import accounts, build, ports
from tools.stack.build import Report
from tools.stack.errors import StackError
from tools.stack.info import FILE, StackInfo
from tools.stack.parts import DEFAULT, PARTS, Part, closure
from tools.stack.process import ProcessId, spawn, wait_ready
from tools.stack.settings import Settings

logger = logging.getLogger(__name__)

_PATIENCE = 10.0
"""How long a part may take to end by itself."""
_START_LIMIT = 90.0


class Stack:
    """One stack in one folder. Usable as a context manager; its methods may be called from several threads."""

    def __init__(
        self,
        directory: Path,
        *,
        parts: Collection[str] = DEFAULT,
        audit: bool = False,
        fsync: bool = False,
        appendonly: bool = False,
        secured: bool = False,
        scrape_interval: str = "1s",
        extra_args: Mapping[str, Sequence[str]] | None = None,
        start_limit: float = _START_LIMIT,
        report: Report = logger.info,
    ) -> None:
        """Nothing is started or written before `up`; see `Settings` for what the choices mean."""
        self._directory = Path(directory).absolute()
        self._settings = Settings(
            parts=closure(parts),
            audit=audit,
            fsync=fsync,
            appendonly=appendonly,
            secured=secured,
            scrape_interval=scrape_interval,
            extra_args={name: tuple(arguments) for name, arguments in (extra_args or {}).items()},
        )
        if unknown := self._settings.extra_args.keys() - set(self._settings.parts):
            raise StackError(f"Arguments for {', '.join(sorted(unknown))}, which this stack does not have.")
        self._start_limit = start_limit
        self._report = report
        self._lock = threading.Lock()
        self._info: StackInfo | None = None
        self._tools: dict[str, Path] = {}

    @classmethod
    def attach(cls, directory: Path, *, report: Report = logger.info) -> Self:
        """The stack that another process started in this folder."""
        info = StackInfo.load(directory)
        stack = cls(info.directory, parts=info.parts, report=report)
        stack._settings, stack._info = info.settings, info
        return stack

    @property
    def info(self) -> StackInfo:
        """How the stack is reached and what runs, as of now."""
        if self._info is None:
            raise StackError("This stack is not up.")
        return self._info

    def up(self, *, fresh: bool = False, detached: bool = False) -> StackInfo:
        """Starts every part and returns when all of them answer.

        What an earlier stack left in the folder is kept, unless `fresh`. A `detached` stack outlives this process;
        otherwise it is brought down when Python ends, at the latest.
        """
        self._refuse_second()
        self._tools = build.ensure(self._needed(), self._report)
        if fresh and (self._directory / FILE).exists():
            # Only a folder that a stack wrote: a mistyped one is not emptied.
            shutil.rmtree(self._directory)
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._info = StackInfo(
            directory=self._directory,
            settings=self._settings,
            ports=ports.choose(_port_names(self._parts())),
            tokens=accounts.new_tokens(),
            processes={},
            passwords=accounts.new_passwords() if self._settings.secured else {},
        )
        self._info.save()
        if self._settings.secured:
            self._info.certificates.make(self._tools["openssl"])
        if not detached:
            atexit.register(self.down)
        try:
            self._start_all()
        except BaseException:
            self.down()
            raise
        return self.info

    def down(self) -> None:
        """Ends every part, those first that need others. Without effect on a stack that is not up."""
        atexit.unregister(self.down)
        if self._info is None:
            return
        running = [PARTS[name] for name in self.info.processes]
        # In layers: what needs others first, so that none of them complains about a lost server or waits for it.
        for depth in sorted({_depth(part) for part in running}, reverse=True):
            layer = [part.name for part in running if _depth(part) == depth]
            with ThreadPoolExecutor(max_workers=len(layer)) as pool:
                for done in [pool.submit(self.stop_part, name) for name in layer]:
                    done.result()

    def __enter__(self) -> StackInfo:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def start_part(self, name: str) -> None:
        """Starts a part that was stopped or killed, on its old ports and with its old data; returns when it answers."""
        part, info = self._part(name), self.info
        running = info.processes.get(name)
        if running is not None and running.is_alive():
            raise StackError(f"{name} already runs (process {running.pid}).")
        if not self._tools:
            self._tools = build.ensure(self._needed(), self._report)
        began = time.monotonic()
        part.prepare(info, self._tools)
        command = [*part.command(info, self._tools), *info.settings.extra_args.get(name, ())]
        process = spawn(command, info.log_file(name))
        self._set_process(name, process)
        wait_ready(name, process, info.log_file(name), lambda: part.ready(info), self._start_limit)
        self._report(f"{name}: ready after {time.monotonic() - began:.1f} s (process {process.pid})")

    def stop_part(self, name: str, patience: float = _PATIENCE) -> None:
        """Asks a part to end and waits for it; kills it when it takes longer than `patience` seconds."""
        began = time.monotonic()
        process = self.info.processes.get(self._part(name).name)
        if process is None:
            return
        process.stop(patience)
        self._set_process(name, None)
        self._report(f"{name}: ended after {time.monotonic() - began:.1f} s")

    def kill_part(self, name: str) -> None:
        """Ends a part without warning, as a crash would."""
        process = self._running(name)
        process.signal(signal.SIGKILL)
        process.stop(_PATIENCE)
        self._set_process(name, None)

    def restart_part(self, name: str) -> None:
        """Stops a part and starts it again on the same ports."""
        self.stop_part(name)
        self.start_part(name)

    def pause_part(self, name: str) -> None:
        """Freezes a part: connections stay open and nothing answers."""
        self.signal_part(name, signal.SIGSTOP)

    def resume_part(self, name: str) -> None:
        """Lets a paused part go on."""
        self.signal_part(name, signal.SIGCONT)

    def signal_part(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to a part (SIGHUP makes Prometheus read its rules again)."""
        if not self._running(name).signal(number):
            raise StackError(f"{name} does not run.")

    def pid(self, name: str) -> int:
        """The process id of a part that runs or is paused."""
        return self._running(name).pid

    def _running(self, name: str) -> ProcessId:
        process = self.info.processes.get(self._part(name).name)
        if process is None:
            raise StackError(f"{name} does not run.")
        return process

    def _part(self, name: str) -> Part:
        if name not in self._settings.parts:
            raise StackError(f"This stack has no part {name}; it has {', '.join(self._settings.parts)}.")
        return PARTS[name]

    def _needed(self) -> set[str]:
        tools = {tool for part in self._parts() for tool in part.tools}
        return tools | {"openssl"} if self._settings.secured else tools

    def _parts(self) -> list[Part]:
        return [PARTS[name] for name in self._settings.parts]

    def _start_all(self) -> None:
        began = time.monotonic()
        starting: dict[str, Future[None]] = {}

        def start(part: Part) -> None:
            for needed in part.after:
                starting[needed].result()
            self.start_part(part.name)

        # A thread for each part: they wait for one another, and what is needed is handed in first.
        with ThreadPoolExecutor(max_workers=len(self._settings.parts)) as pool:
            for part in self._parts():
                starting[part.name] = pool.submit(start, part)
        for done in starting.values():
            done.result()
        self._report(f"all parts ready after {time.monotonic() - began:.1f} s")

    def _set_process(self, name: str, process: ProcessId | None) -> None:
        with self._lock:
            processes = {part: known for part, known in self.info.processes.items() if part != name}
            if process is not None:
                processes[name] = process
            self._info = replace(self.info, processes=processes)
            self._info.save()

    def _refuse_second(self) -> None:
        if not (self._directory / FILE).exists():
            return
        alive = [name for name, process in StackInfo.load(self._directory).processes.items() if process.is_alive()]
        if alive:
            raise StackError(
                f"A stack already runs in {self._directory} ({', '.join(alive)}): "
                f"`python -m tools.stack down --dir {self._directory}` ends it."
            )


def _port_names(parts: Collection[Part]) -> list[str]:
    return [name for part in parts for name in (part.name, *(f"{part.name}-{second}" for second in part.second_ports))]


def _depth(part: Part) -> int:
    return 1 + max((_depth(PARTS[needed]) for needed in part.after), default=0)


__all__ = ["Stack"]
