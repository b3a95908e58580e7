"""Redis, the ledger: refuses writes when memory is full rather than forgetting reservations.

Secured, it speaks TLS only and every service has a user that reaches the ledger's keys with the commands that the
ledger uses. (Commands inside functions are checked against the user too.)
"""

from hashlib import sha256

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools
from tools.stack.paths import write_private

LEDGER_USERS = ("watcher", "placement", "preemptor", "binder")
#: The commands that the ledger's functions run and those that its client does; the line is in docs/operations.md too.
LEDGER_RULES = (
    "~{drystone}* resetchannels -@all +@connection +info +config|get +function|load +function|list +function|delete "
    "+fcall +xread +hget +hmget +hset +hdel +hincrby +hscan +zadd +zrem +zcard +zrange +zrangebyscore "
    "+zremrangebyrank +zmscore +xadd +unlink +time"
)


def _prepare(info: StackInfo, _tools: Tools) -> None:
    folder = info.directory / "redis"
    folder.mkdir(parents=True, exist_ok=True)
    if info.settings.secured:
        write_private(folder / "users.acl", users(info))


def users(info: StackInfo) -> str:
    """The file of users: digests of the passwords, not the passwords."""
    digest = {name: sha256(word.encode()).hexdigest() for name, word in info.passwords.items()}
    lines = ["user default off", f"user admin on #{digest['admin']} ~* &* +@all"]
    lines += [f"user {name} on #{digest[name]} {LEDGER_RULES}" for name in LEDGER_USERS]
    return "\n".join(lines) + "\n"


def _command(info: StackInfo, tools: Tools) -> list[str]:
    host, port = info.address("redis").split(":")
    return [
        str(tools["redis-server"]),
        "--bind",
        host,
        *_listening(info, port),
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


def _listening(info: StackInfo, port: str) -> list[str]:
    if not info.settings.secured:
        return ["--port", port]
    files = info.certificates
    return [
        "--port", "0",
        "--tls-port", port,
        "--tls-cert-file", str(files.certificate),
        "--tls-key-file", str(files.key),
        "--tls-ca-cert-file", str(files.authority),
        # Clients prove who they are by password.
        "--tls-auth-clients", "no",
        "--aclfile", str(info.directory / "redis" / "users.acl"),
    ]  # fmt: skip


def _ready(info: StackInfo) -> bool:
    if info.settings.secured:
        said = probe.exchange(info.address("redis"), b"PING\r\n", ca_file=info.certificates.authority)
        return said.startswith(b"-NOAUTH")
    return probe.exchange(info.address("redis"), b"PING\r\n").startswith(b"+PONG")


REDIS = Part("redis", ("redis-server",), _command, _ready, _prepare)
