"""Asks a server whether it answers, with nothing but sockets."""

import http.client
import socket
import ssl
from pathlib import Path

_LIMIT = 5.0


def get(address: str, path: str, *, ca_file: Path | None = None, tls: bool = False, token: str = "") -> int:
    """The status code of a GET; 0 when nothing answers. TLS without a `ca_file` trusts anybody."""
    connection: http.client.HTTPConnection
    if tls or ca_file:
        context = ssl.create_default_context()
        if ca_file is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            try:
                context.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError):
                # The server writes its certificate when it starts.
                return 0
        connection = http.client.HTTPSConnection(address, timeout=_LIMIT, context=context)
    else:
        connection = http.client.HTTPConnection(address, timeout=_LIMIT)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def exchange(address: str, request: bytes, size: int = 4096, *, ca_file: Path | None = None) -> bytes:
    """What a server says first to some bytes, over TLS with a `ca_file`; empty when nothing answers."""
    host, port = address.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=_LIMIT) as plain:
            if ca_file is None:
                plain.sendall(request)
                return plain.recv(size)
            with ssl.create_default_context(cafile=ca_file).wrap_socket(plain, server_hostname=host) as connection:
                connection.sendall(request)
                return connection.recv(size)
    except OSError:
        return b""
