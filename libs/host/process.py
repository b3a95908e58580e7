"""One service as one process: read settings, open the parts, serve, stop in phases.

Exit codes: 0 after an ordinary stop, 2 for a wrong configuration (one sentence on stderr, no trace), 1 for a fault that
a restart must cure. The first SIGTERM or SIGINT asks the service to stop; a second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from libs.host.open import Opened, PartUnavailable, close_parts, open_parts
from libs.host.parts import Parts
from libs.host.probes import Probes
from libs.host.settings import CommonSettings, WrongSettings, read_settings
from libs.observe import logs
from libs.observe.health import HealthServer
from libs.observe.metrics import histogram
from libs.runtime.garbage import collect_rarely
from libs.runtime.held import Held, watch
from libs.runtime.lifecycle import Health, Service
from libs.runtime.phases import Phase, run_phases
from libs.runtime.tasks import waits_at

log = structlog.get_logger()

S = TypeVar("S", bound=CommonSettings)

ALL_PARTS: Final = ("bus", "ledger", "kube")
_GARBAGE_S = histogram("drystone_garbage_seconds", "One collection of cyclic garbage, in which nothing else is done.")
_HELD_S = histogram("drystone_event_loop_held_seconds", "The event loop did not turn for 0.1 s and more.")
#: Of `stop_s`, what is kept for closing the parts after the service has stopped.
_CLOSE_S: Final = 5.0
#: So long nobody read on from a topic although all servers answer: a task stands still, and only a restart helps.
#: Longer than any way of ours to wait with work in hand.
LEFT_S: Final = 300.0
#: So long the event loop stood still.
STILL_S: Final = 30.0
#: The event loop was held so long that the log says by what; shorter ones are said at level debug.
_HELD_LONG_S: Final = 1.0
_TURN_S: Final = 2.0


def main(
    name: str,
    settings_type: type[S],
    build: Callable[[S, Parts], Service],
    *,
    needs: Collection[str] = ALL_PARTS,
) -> int:
    """Run the service until it is asked to stop; returns the exit code."""
    try:
        settings = read_settings(settings_type)
        logs.hide(*settings.secrets)
        logs.configure(level=settings.log_level, format=settings.log_format, service=name, replica=settings.replica_id)
        return _loop(settings.uvloop)(_serve(name, settings, build, needs))
    except (WrongSettings, PartUnavailable) as error:
        sys.stderr.write(f"{name}: {logs.clean(str(error))}\n")
        return 2 if isinstance(error, WrongSettings) else 1
    except KeyboardInterrupt:
        return 130


def _loop(fast: bool) -> Callable[[Coroutine[Any, Any, int]], int]:
    """The event loop's runner. uvloop is a setting, because a debugger or a platform may not like it."""
    if fast:
        try:
            import uvloop
        except ImportError:
            return asyncio.run
        return uvloop.run
    return asyncio.run


async def _serve(name: str, settings: S, build: Callable[[S, Parts], Service], needs: Collection[str]) -> int:
    stop = _stop_on_signals()
    state = _State()
    server = HealthServer(name, state.health, settings.http_host, settings.http_port)
    try:
        await server.start()
    except OSError as error:
        raise WrongSettings(
            f"DRYSTONE_HTTP_HOST and DRYSTONE_HTTP_PORT: cannot listen on {settings.http_host}:"
            f"{settings.http_port}: {error.strerror or error}."
        ) from None
    opened = None
    fault: BaseException | None = None
    aside: list[asyncio.Task[None]] = []
    try:
        opened = await open_parts(name, settings, needs, stop)
        if opened is None:  # asked to stop while the parts were not there yet
            return 0
        service = build(settings, opened.parts)
        probes = Probes(opened.parts.clock, settings.unready_after_s)
        for part, ask in opened.asks.items():
            probes.add(part, ask)
        state.service, state.opened, state.probes = service, opened, probes
        log.info("serving", port=server.port)
        aside += [
            asyncio.create_task(collect_rarely(_GARBAGE_S.observe), name="garbage"),
            asyncio.create_task(probes.run(), name="do they answer"),
            asyncio.create_task(_turning(), name="turning"),
            asyncio.create_task(watch(_was_held), name="who holds the loop"),
        ]
        fault = await _until_stopped(service, stop, settings.stop_s, state)
    finally:
        for task in aside:
            task.cancel()
        phases = []
        if opened is not None:
            held = opened
            phases.append(Phase("close parts", _CLOSE_S, lambda: close_parts(held)))
        phases.append(Phase("close http", 2.0, server.stop))
        await run_phases(phases)
    if fault is not None:
        log.error("service failed", exc_info=fault)
        return 1
    return 0


class _State:
    """What /healthz and /readyz say, from before the service exists until after it stopped."""

    def __init__(self) -> None:
        self.service: Service | None = None
        self.opened: Opened | None = None
        self.probes: Probes | None = None
        self.stopping = False
        #: Since when a part is broken (monotonic seconds).
        self._broken_since: dict[str, float] = {}

    def health(self) -> Health:
        service, opened, probes = self.service, self.opened, self.probes
        if service is None or opened is None or probes is None:
            return Health(ready=False, detail={"state": "starting"})
        health = service.health()
        broken = self._timed(opened.healthy(), opened.parts.clock.monotonic())
        failing = probes.failing()
        detail = {**health.detail, **broken, **failing}
        # While a server is away only waiting helps, however long that takes.
        alive = health.alive and (opened.left_s < LEFT_S or bool(failing))
        if not alive:
            detail["state"] = "stands still"
        if self.stopping:
            return Health(ready=False, alive=True, detail={**detail, "state": "stopping"})
        return Health(ready=health.ready and not broken and probes.ready, alive=alive, detail=detail)

    def _timed(self, broken: dict[str, str], now: float) -> dict[str, str]:
        self._broken_since = {part: self._broken_since.get(part, now) for part in broken}
        return {part: f"for {now - self._broken_since[part]:.0f} s: {said}" for part, said in broken.items()}


async def _turning() -> None:
    """Where the event loop stands still, /healthz cannot say so: it gives no answer, and every thread's stack is
    written to standard error."""
    if sys.__stderr__ is None:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(STILL_S, file=sys.__stderr__)
            await asyncio.sleep(_TURN_S)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _was_held(by: Held) -> None:
    _HELD_S.observe(by.seconds)
    say = log.warning if by.seconds >= _HELD_LONG_S else log.debug
    say("event loop held", seconds=round(by.seconds, 3), cpu_s=round(by.cpu_s, 3), at=by.at)


async def _until_stopped(service: Service, stop: asyncio.Event, stop_s: float, state: _State) -> BaseException | None:
    """Serve; after `stop` give it its budget to finish, then cancel. Returns the fault that ended it early."""
    serving = asyncio.create_task(service.serve(stop), name=f"serve {service.name}")
    stopping = asyncio.create_task(stop.wait(), name="stop signal")
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            state.stopping = True
            budget = max(0.5, stop_s - _CLOSE_S - 2.0)

            async def finish() -> None:
                await asyncio.wait({serving})

            await run_phases([Phase("finish what is in hand", budget, finish)])
    finally:
        stopping.cancel()
        if not serving.done():
            serving.cancel()
        await asyncio.wait({serving, stopping})
    if serving.cancelled():
        return None
    fault = serving.exception()
    if fault is None and not stop.is_set():
        return RuntimeError(f"{service.name} returned although nobody asked it to stop")
    return fault


def _tell_tasks() -> None:
    """What every task waits for, in the log: the question when a service stands still. Asked by SIGUSR1."""
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        frames = [f"{Path(f.f_code.co_filename).name}:{f.f_lineno} {f.f_code.co_name}" for f in waits_at(task)]
        log.info("task", name=task.get_name(), cancelling=task.cancelling(), at=frames)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked(number: signal.Signals) -> None:
        if stop.is_set():
            log.warning("second signal: ending at once", signal=number.name)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
            return
        log.info("asked to stop", signal=number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)
    loop.add_signal_handler(signal.SIGUSR1, _tell_tasks)
    return stop
