"""Redis, the ledger: refuses writes when memory is full rather than forgetting reservations."""

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools


def _prepare(info: StackInfo, _tools: Tools) -> None:
    (info.directory / "redis").mkdir(parents=True, exist_ok=True)


def _command(info: StackInfo, tools: Tools) -> list[str]:
    host, port = info.address("redis").split(":")
    return [
        str(tools["redis-server"]),
        "--bind",
        host,
        "--port",
        port,
        "--dir",
        str(info.directory / "redis"),
        "--maxmemory-policy",
        "noeviction",
        # No snapshots: they copy the process in the middle of a benchmark.
        "--save",
        "",
        "--appendonly",
        "yes" if info.settings.appendonly else "no",
        # As the deployment has it: at most a second of writes is lost with the machine, none with the process.
        "--appendfsync",
        "everysec",
        "--daemonize",
        "no",
    ]


def _ready(info: StackInfo) -> bool:
    return probe.exchange(info.address("redis"), b"PING\r\n").startswith(b"+PONG")


REDIS = Part("redis", ("redis-server",), _command, _ready, _prepare)
