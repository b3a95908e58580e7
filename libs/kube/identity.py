"""Where the API server is and who we are there: a kubeconfig, or the service account of the pod we run in.

A service account's token is replaced by the kubelet while we run, so its file is read again when it changes; a
kubeconfig's `exec` program is asked again before its token ends. Anything that cannot be used gives one clear sentence
(`BadConfiguration`), at start.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from libs.kube.errors import BadConfiguration
from libs.kube.plugin import Plugin

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(slots=True)
class Token:
    """A bearer token: fixed, in a file that may change, or from a program."""

    value: str = ""
    file: Path | None = None
    plugin: Plugin | None = None
    _stamp: tuple[int, int] = (0, 0)

    def read(self) -> str:
        """The token as it is now. A file that is unreadable for a moment leaves the last value in use."""
        if self.plugin is not None:
            return self.plugin.token
        if self.file is None:
            return self.value
        try:
            seen = self.file.stat()
            stamp = (seen.st_mtime_ns, seen.st_ino)
            if stamp != self._stamp:
                self.value, self._stamp = self.file.read_text().strip(), stamp
        except OSError:
            if not self.value:
                raise
        return self.value


@dataclass(slots=True)
class Identity:
    server: str
    tls: ssl.SSLContext | None
    token: Token
    server_name: str | None = None


def in_cluster(account: Path = _ACCOUNT) -> Identity:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadConfiguration("not inside a cluster: KUBERNETES_SERVICE_HOST is not set; give a kubeconfig instead")
    token = Token(file=account / "token")
    try:
        token.read()
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise BadConfiguration(f"the service account in {account} cannot be used: {error}") from error
    address = f"[{host}]" if ":" in host else host
    return Identity(f"https://{address}:{port}", tls, token)


def from_kubeconfig(path: Path, context: str = "") -> Identity:
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise BadConfiguration(f"kubeconfig {path} cannot be read: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"kubeconfig {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise BadConfiguration(f"kubeconfig {path} is no kubeconfig")
    name = context or str(config.get("current-context") or "")
    chosen = _named(config, "contexts", "context", name, path)
    cluster = _named(config, "clusters", "cluster", str(chosen.get("cluster") or ""), path)
    user = _named(config, "users", "user", str(chosen["user"]), path) if chosen.get("user") else {}
    if user.get("auth-provider"):
        raise BadConfiguration(
            f"kubeconfig {path}: users with `auth-provider` are not supported (nor by kubectl any more);"
            " use `exec` or a token"
        )
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise BadConfiguration(f"kubeconfig {path}: cluster {chosen.get('cluster')!r} has no usable `server`")
    token = Token(value=str(user.get("token") or ""))
    if user.get("tokenFile"):
        token = Token(file=path.parent / str(user["tokenFile"]))
        try:
            token.read()
        except OSError as error:
            raise BadConfiguration(f"kubeconfig {path}: tokenFile cannot be read: {error}") from error
    elif isinstance(user.get("exec"), dict) and not token.value:
        token = Token(plugin=Plugin(path, user["exec"]))
    tls = _tls(cluster, user, path) if server.startswith("https://") else None
    return Identity(server, tls, token, cluster.get("tls-server-name"))


def _named(config: dict[str, Any], group: str, inner: str, name: str, path: Path) -> dict[str, Any]:
    for entry in config.get(group) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return dict(entry.get(inner) or {})
    raise BadConfiguration(f"kubeconfig {path} has no {inner} named {name!r}")


def _tls(cluster: dict[str, Any], user: dict[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _content(cluster, "certificate-authority", path)
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate, key = _content(user, "client-certificate", path), _content(user, "client-key", path)
        if certificate and key:
            # The ssl module takes certificates from files alone; this one is readable by us only and gone at once.
            with tempfile.NamedTemporaryFile() as both:
                both.write(certificate + b"\n" + key)
                both.flush()
                tls.load_cert_chain(both.name)
    except (OSError, ssl.SSLError, binascii.Error, ValueError) as error:
        raise BadConfiguration(f"kubeconfig {path}: certificates cannot be used: {error}") from error
    return tls


def _content(section: dict[str, Any], name: str, path: Path) -> bytes:
    if section.get(f"{name}-data"):
        return base64.b64decode(section[f"{name}-data"])
    return (path.parent / str(section[name])).read_bytes() if section.get(name) else b""
