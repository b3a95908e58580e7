"""Free ports on the loopback address, that stay free while their part is stopped.

Ports come from below the range that the kernel hands to outgoing connections: a port from inside it could be taken by
any client while a test has the part stopped, and the part could then not come back at the same address.
"""

import random
import socket
from collections.abc import Iterable
from pathlib import Path

from tools.stack.errors import StackError

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 2_000


def choose(names: Iterable[str]) -> dict[str, int]:
    """One free port for each name, all different."""
    highest = _below_outgoing()
    # Random, so that two stacks that start at the same moment hardly ever try the same port.
    numbers = random.SystemRandom()
    chosen: dict[str, int] = {}
    for name in names:
        for _ in range(_TRIES):
            port = numbers.randrange(_LOWEST, highest)
            if port not in chosen.values() and is_free(port):
                chosen[name] = port
                break
        else:
            raise StackError(f"No free port between {_LOWEST} and {highest} on {LOOPBACK}.")
    return chosen


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections that are still closing do not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _below_outgoing() -> int:
    try:
        lowest_outgoing = int(_RANGE_FILE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        lowest_outgoing = 32_768
    return lowest_outgoing if lowest_outgoing > _LOWEST + 1_000 else 65_000
