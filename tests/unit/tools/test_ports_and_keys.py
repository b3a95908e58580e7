"""Ports are free, different and out of the way of outgoing connections; the signing key is a valid one."""

import base64
import socket
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tools.stack import ports
from tools.stack.keys import new_signing_key
from tools.stack.paths import write_private


def test_ports_are_free_and_different() -> None:
    chosen = ports.choose([f"p{number}" for number in range(50)])
    assert len(set(chosen.values())) == 50
    assert all(ports.is_free(port) for port in chosen.values())


def test_a_taken_port_is_not_free() -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        assert not ports.is_free(server.getsockname()[1])


def test_ports_stay_below_those_of_outgoing_connections() -> None:
    outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    if outgoing <= 21_000:
        pytest.skip("this machine hands out nearly all ports")
    assert max(ports.choose("abc").values()) < outgoing


def test_the_signing_key_has_the_length_that_its_header_says() -> None:
    lines = new_signing_key().splitlines()
    assert (lines[0], lines[-1]) == ("-----BEGIN EC PRIVATE KEY-----", "-----END EC PRIVATE KEY-----")
    der = base64.b64decode("".join(lines[1:-1]))
    assert der[0] == 0x30
    assert der[1] == len(der) - 2
    assert der[5:7] == b"\x04\x20"
    assert new_signing_key() != new_signing_key()


@pytest.mark.skipif(which("openssl") is None, reason="no openssl to check the key with")
def test_another_program_accepts_the_signing_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    write_private(key, new_signing_key())
    subprocess.run(["openssl", "pkey", "-in", str(key), "-noout", "-check"], check=True, capture_output=True)
