"""etcd, the API server's database: one member on the loopback address."""

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools


def _command(info: StackInfo, tools: Tools) -> list[str]:
    clients, peers = f"http://{info.address('etcd')}", f"http://{info.address('etcd', 'peer')}"
    command = [
        str(tools["etcd"]),
        "--name=stack",
        f"--data-dir={info.directory / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=stack={peers}",
        # The default of 2 GiB is less than a long benchmark may write between two compactions.
        "--quota-backend-bytes=8589934592",
        # A single member elects itself after this long; the default costs each start most of a second.
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--log-level=warn",
    ]
    if not info.settings.fsync:
        # A thrown-away stack must not measure the disk: each write would wait for it.
        command.append("--unsafe-no-fsync")
    return command


ETCD = Part(
    "etcd",
    ("etcd",),
    _command,
    lambda info: probe.get(info.address("etcd"), "/readyz") == 200,
    second_ports=("peer",),
)
