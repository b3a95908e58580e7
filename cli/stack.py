"""`drystone stack`: the real parts on this machine, started detached, ended by pid."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from cli.errors import CommandError
from cli.out import say
from tools.fleet import Fleet
from tools.load import apply_base, create_topics
from tools.stack import Stack, StackError, StackInfo


def up(directory: Path, *, services: bool) -> int:
    try:
        info = Stack(directory, report=say).up(detached=True)
        apply_base(info)
        create_topics(info)
    except StackError as error:
        raise CommandError(str(error)) from error
    if services:
        asyncio.run(_services(info))
    _print(info)
    return 0


def down(directory: Path) -> int:
    noted = directory / "services" / "fleet.json"
    if noted.exists():
        for row in json.loads(noted.read_text()):
            _end(row["pid"], row["name"])
        noted.unlink()
    try:
        Stack.attach(directory, report=say).down()
    except StackError as error:
        raise CommandError(str(error)) from error
    return 0


def status(directory: Path) -> int:
    try:
        _print(StackInfo.load(directory))
    except StackError as error:
        raise CommandError(str(error)) from error
    return 0


async def _services(info: StackInfo) -> None:
    fleet = Fleet(info, info.directory / "services")
    await fleet.start()
    fleet.save()


def _end(pid: int, name: str) -> None:
    """Only if it is still the process that was started: its command line names the service."""
    module = f"services.{name.rsplit('-', 1)[0].replace('-', '_')}"
    try:
        if module in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return


def _print(info: StackInfo) -> None:
    rows = {
        "API server": info.api_server,
        "Kafka": info.kafka_bootstrap,
        "Redis": info.redis_url,
        "Prometheus": info.prometheus_url or "-",
        "processes": ", ".join(f"{part} {pid}" for part, pid in info.pids.items()) or "none",
    }
    for name, value in rows.items():
        say(f"{name:<12} {value}")
    say(f"\nexport KUBECONFIG={info.kubeconfig}")
    say(f"export DRYSTONE_KAFKA_BOOTSTRAP={info.kafka_bootstrap} DRYSTONE_REDIS_URL={info.redis_url}")
