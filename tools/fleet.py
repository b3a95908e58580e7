"""The five services as processes of their own, on a running stack, each under its own account.

For tests, benchmarks and `drystone stack up --services`: start, wait until ready, pause, kill, measure. Ends only what
it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tools.stack import StackInfo
from tools.stack.ports import choose

SERVICES = ("watcher", "metrics-collector", "placement", "preemptor", "binder")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Member:
    """One running replica of a service."""

    service: str
    replica: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def name(self) -> str:
        return f"{self.service}-{self.replica}"

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def ready(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def metrics(self) -> str:
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())


class Fleet:
    """Replicas of services. `async with Fleet(info, directory) as fleet: await fleet.start()`."""

    def __init__(self, info: StackInfo, directory: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.info = info
        self.directory = directory
        self.environment = dict(environment or {})
        self.members: list[Member] = []
        directory.mkdir(parents=True, exist_ok=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.stop)

    def spawn(self, service: str, replica: str = "0", **extra: str) -> Member:
        port = _free_port()
        environment = {
            **os.environ,
            "DRYSTONE_KAFKA_BOOTSTRAP": self.info.kafka_bootstrap,
            "DRYSTONE_REDIS_URL": self.info.redis_url,
            "DRYSTONE_KUBECONFIG": str(self.info.kubeconfig_for(service)),
            "DRYSTONE_HTTP_HOST": "127.0.0.1",
            "DRYSTONE_HTTP_PORT": str(port),
            "DRYSTONE_REPLICA_ID": f"{service}-{replica}",
            "DRYSTONE_LOG_FORMAT": "json",
            **self.info.environment_for(service),
            **({"DRYSTONE_PROMETHEUS_URL": self.info.prometheus_url} if self.info.prometheus_url else {}),
            **self.environment,
            **extra,
        }
        log = self.directory / f"{service}-{replica}.log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", f"services.{service.replace('-', '_')}"],
                cwd=Path(__file__).resolve().parent.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        member = Member(service, replica, port, process, log)
        self.members.append(member)
        return member

    async def start(self, services: Iterable[str] = SERVICES, *, replicas: int = 1, limit_s: float = 60.0) -> None:
        """Start and wait until every one answers ready. Raises FleetError with the log's end otherwise."""
        for service in services:
            for replica in range(replicas):
                self.spawn(service, str(replica))
        await self.wait_ready(limit_s)

    async def wait_ready(self, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        waiting = list(self.members)
        while waiting:
            for member in list(waiting):
                if member.process.poll() is not None:
                    raise FleetError(f"{member.name} ended with {member.process.returncode}:\n{tail(member.log)}")
                if await asyncio.to_thread(member.ready):
                    waiting.remove(member)
            if waiting and time.monotonic() > deadline:
                names = ", ".join(m.name for m in waiting)
                raise FleetError(f"not ready after {limit_s:.0f} s: {names}\n{tail(waiting[0].log)}")
            await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals, services: Iterable[str] | None = None) -> None:
        for member in self.members:
            if services is None or member.service in services:
                member.process.send_signal(number)

    def pause(self, services: Iterable[str] | None = None) -> None:
        self.signal(signal.SIGSTOP, services)

    def resume(self, services: Iterable[str] | None = None) -> None:
        self.signal(signal.SIGCONT, services)

    def kill(self, member: Member) -> None:
        member.process.kill()
        member.process.wait(timeout=10)
        self.members.remove(member)

    def stop(self, patience_s: float = 20.0) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGCONT)
                member.process.terminate()
        deadline = time.monotonic() + patience_s
        for member in self.members:
            try:
                member.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait(timeout=10)
        self.members.clear()

    def usage(self) -> dict[str, dict[str, float]]:
        """CPU seconds and peak memory by replica, since its start."""
        return {m.name: {"cpu_s": round(m.cpu_seconds(), 3), "peak_mib": round(m.peak_mib(), 1)} for m in self.members}

    def save(self) -> None:
        """Note the replicas in the directory, so that another process can end them (`end_saved`)."""
        rows = [{"name": m.name, "pid": m.process.pid, "port": m.port} for m in self.members]
        (self.directory / "fleet.json").write_text(json.dumps(rows))


class FleetError(Exception):
    """A service did not come up; the message has the end of its log."""


def tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _free_port() -> int:
    """Not one that an outgoing connection may take before the service listens."""
    return choose(["http"])["http"]
