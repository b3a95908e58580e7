"""`python -m tools.stack build|up|down|status|pin`: the local stack from the command line."""

import argparse
import os
import sys
from pathlib import Path

from tools.stack import ALL, DEFAULT, Stack, StackError, StackInfo, build, gomod, toolbox
from tools.stack.parts import PARTS, closure

_DIRECTORY = Path("var/stack")


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        match chosen.command:
            case "build":
                _build(chosen.parts)
            case "up":
                _up(chosen)
            case "down":
                _down(chosen.dir)
            case "status":
                return _status(chosen.dir)
            case "pin":
                for written in gomod.pin(toolbox.go()):
                    _say(str(written))
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`head`, `grep -q`) has what it wanted; Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _build(parts: list[str]) -> None:
    names = {tool for name in closure(parts) for tool in PARTS[name].tools} if parts else set(toolbox.TOOLS)
    for name, path in build.ensure(names, _say).items():
        _say(f"{name}: {path}")


def _up(chosen: argparse.Namespace) -> None:
    stack = Stack(
        chosen.dir,
        parts=chosen.parts or DEFAULT,
        audit=chosen.audit,
        fsync=chosen.fsync,
        appendonly=chosen.appendonly,
        secured=chosen.secured,
        scrape_interval=chosen.scrape_interval,
        report=_say,
    )
    _describe(stack.up(fresh=chosen.fresh, detached=True))


def _down(directory: Path) -> None:
    Stack.attach(directory, report=_say).down()
    _say("nothing runs")


def _status(directory: Path) -> int:
    """0 when every part runs, else 3, as init scripts have it."""
    info = StackInfo.load(directory)
    alive = {name: process.pid for name, process in info.processes.items() if process.is_alive()}
    for name in info.parts:
        _say(f"{name}: " + (f"runs (process {alive[name]})" if name in alive else "does not run"))
    if not alive:
        return 3
    _describe(info)
    return 0 if len(alive) == len(info.parts) else 3


def _describe(info: StackInfo) -> None:
    if "apiserver" in info.parts:
        _say(f"API server  {info.api_server}")
    if "kafka" in info.parts:
        _say(f"Kafka       {info.kafka_bootstrap}")
    if "redis" in info.parts:
        _say(f"Redis       {info.redis_url}")
    if info.prometheus_url is not None:
        _say(f"Prometheus  {info.prometheus_url} (targets: {info.prometheus_targets})")
    _say(f"logs        {info.directory / 'log'}")
    if "apiserver" in info.parts:
        _say(f"export KUBECONFIG={info.kubeconfig}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    names = f"comma-separated, of: {', '.join(ALL)}"

    build_command = commands.add_parser("build", help="get what is missing, once")
    build_command.add_argument("--parts", type=_names, default=[], help=f"only for these ({names}); default: all")

    up = commands.add_parser("up", help="start a stack that stays")
    up.add_argument("--parts", type=_names, default=[], help=f"{names}, or `all`; default: {', '.join(DEFAULT)}")
    up.add_argument("--audit", action="store_true", help="log every write to the API server with its user")
    up.add_argument("--fsync", action="store_true", help="let etcd wait for the disk")
    up.add_argument("--appendonly", action="store_true", help="let Redis keep its data over a restart")
    up.add_argument("--secured", action="store_true", help="accounts, access lists and TLS for Kafka and Redis")
    up.add_argument("--scrape-interval", default="1s", help="how often Prometheus reads its targets")
    up.add_argument("--fresh", action="store_true", help="throw away what an earlier stack left in the folder")

    down = commands.add_parser("down", help="end it")
    status = commands.add_parser("status", help="say what runs and where")
    for command in (up, down, status):
        command.add_argument("--dir", type=Path, default=_DIRECTORY, help="the folder of the stack (%(default)s)")
    commands.add_parser("pin", help="write the module files anew after a change of the pinned versions")
    return parser


def _names(text: str) -> list[str]:
    return list(ALL) if text == "all" else [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
