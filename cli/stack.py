"""`drystone stack`: the real parts on this machine, started detached, ended by pid."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

from cli.acls import allow, service_rules
from cli.errors import CommandError
from cli.out import say
from libs.contracts.topics import JOBS
from tools.fleet import Fleet, FleetError
from tools.load import Load, LoadError, apply_base, create_topics, kafka_of, node_object
from tools.stack import DEFAULT, Stack, StackError, StackInfo
from tools.stack.accounts import ADMIN
from tools.stack.paths import write_private

#: Longer than a service takes to stop in its phases.
_PATIENCE_S: Final = 25.0


def up(directory: Path, *, services: bool, nodes: int = 0, secured: bool = False) -> int:
    """With `nodes`, so many of 8 GPUs each, whose kubelets are played: pods bound to them run. `secured`: Kafka and
    Redis with accounts, access lists and TLS, each service under its own."""
    parts = (*DEFAULT, "controller-manager", "kwok") if nodes else DEFAULT
    try:
        info = Stack(directory, parts=parts, secured=secured, report=say).up(detached=True)
        apply_base(info)
        create_topics(info)
        if secured:
            asyncio.run(allow(kafka_of(info, ADMIN), service_rules("", [JOBS.name])))
        if nodes:
            asyncio.run(_nodes(info, nodes))
        if services:
            asyncio.run(_services(info))
    except (StackError, LoadError, FleetError) as error:
        raise CommandError(str(error)) from error
    _print(info)
    return 0


def down(directory: Path) -> int:
    noted = directory / "services" / "fleet.json"
    if noted.exists():
        _end(json.loads(noted.read_text()))
        noted.unlink()
    try:
        Stack.attach(directory, report=say).down()
    except StackError as error:
        raise CommandError(str(error)) from error
    return 0


def status(directory: Path) -> int:
    """0 when every part runs, else 3, as init scripts have it."""
    try:
        info = StackInfo.load(directory)
    except StackError as error:
        raise CommandError(str(error)) from error
    _print(info)
    alive = [name for name, process in info.processes.items() if process.is_alive()]
    return 0 if len(alive) == len(info.parts) else 3


async def _nodes(info: StackInfo, count: int) -> None:
    async with Load.of(info) as load:
        await load.create_nodes([node_object(f"node-{n}", fake_kubelet=True) for n in range(count)])


async def _services(info: StackInfo) -> None:
    fleet = Fleet(info, info.directory / "services")
    await fleet.start()
    fleet.save()


def _end(noted: list[dict[str, Any]]) -> None:
    """Ask each service to stop, if it is still the process that was started (its command line names the service), and
    wait: the parts that they need are ended next."""
    asked: list[int] = []
    for row in noted:
        if _is(row["pid"], row["name"]):
            os.kill(row["pid"], signal.SIGTERM)
            asked.append(row["pid"])
    deadline = time.monotonic() + _PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in asked) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is(pid: int, name: str) -> bool:
    module = f"services.{name.rsplit('-', 1)[0].replace('-', '_')}"
    try:
        return module in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def _print(info: StackInfo) -> None:
    rows = {
        "API server": info.api_server,
        "Kafka": info.kafka_bootstrap,
        "Redis": info.redis_url,
        "Prometheus": info.prometheus_url or "-",
        "processes": ", ".join(f"{p} {known.pid}" for p, known in info.processes.items() if known.is_alive()) or "none",
        "logs": str(info.directory / "log"),
    }
    for name, value in rows.items():
        say(f"{name:<12} {value}")
    if rows["processes"] == "none":
        return
    say(f"\nexport KUBECONFIG={info.kubeconfig}")
    say(f"export DRYSTONE_KAFKA_BOOTSTRAP={info.kafka_bootstrap} DRYSTONE_REDIS_URL={info.redis_url}")
    if info.settings.secured:
        # Passwords are not for the screen.
        secrets = info.directory / "admin.env"
        write_private(secrets, "".join(f"{name}={value}\n" for name, value in info.environment_for(ADMIN).items()))
        say(f"set -a; . {secrets}; set +a")
