"""Settings that every service shares, read from the environment (prefix DRYSTONE_).

A wrong value is refused at start with one sentence that names the variable and what is wrong with it; values of
secrets are never repeated.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import ssl
from pathlib import Path
from typing import Literal, Self, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

PREFIX = "DRYSTONE_"


class WrongSettings(Exception):
    """One sentence for the operator."""


def _replica_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def are_brokers(text: str) -> bool:
    """Whether this is host:port, or several of them separated by commas."""
    parts = [server.strip().rpartition(":") for server in text.split(",")]
    return all(host and port.isdigit() for host, _, port in parts)


class CommonSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True)

    #: Brokers to begin with: host:port, several separated by commas.
    kafka_bootstrap: str = "127.0.0.1:9092"
    #: How brokers are spoken to.
    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    #: Account at the brokers, with `SASL_PLAINTEXT` or `SASL_SSL`.
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    kafka_sasl_username: str = ""
    kafka_sasl_password: SecretStr = SecretStr("")
    #: With `SSL` or `SASL_SSL`: who signs the brokers' certificates (PEM).
    kafka_ca_file: Path | None = None
    #: A certificate of our own, where the brokers ask for one.
    kafka_cert_file: Path | None = None
    #: Its key.
    kafka_key_file: Path | None = None

    #: `rediss://` for TLS.
    redis_url: str = "redis://127.0.0.1:6379/0"
    #: Redis' user; the password here, not in the URL.
    redis_username: str = ""
    redis_password: SecretStr = SecretStr("")
    #: Who signs Redis' certificate (PEM).
    redis_ca_file: Path | None = None
    #: A certificate of our own, where Redis asks for one.
    redis_cert_file: Path | None = None
    #: Its key.
    redis_key_file: Path | None = None

    #: A kubeconfig; empty: the pod's own service account.
    kubeconfig: str = ""
    #: Its context; empty: the current one.
    kube_context: str = ""

    #: Where /healthz, /readyz and /metrics are served.
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8080, ge=0, le=65535)

    #: So many seconds without an answer of Redis or of the API server, which are asked every 5 s, make unready.
    unready_after_s: float = Field(default=10.0, gt=0, le=600)
    #: Logs go to standard error.
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Literal["json", "console"] = "json"
    #: The faster event loop.
    uvloop: bool = True
    #: Unique among the replicas of a service. Stable over restarts (a StatefulSet's pod name) it becomes the static
    #: membership of the consumer groups, see `kafka_static_members`.
    replica_id: str = Field(default_factory=_replica_id, min_length=1, max_length=200)
    #: With it a replica that restarts within the session time gets its partitions back without a rebalance; one that
    #: went for good is only noticed after the session time.
    kafka_static_members: bool = False
    #: How soon a group notices that a member died without a word; the broker has bounds of its own (6 s by default).
    kafka_session_s: float = Field(default=10.0, ge=1, le=300)
    #: From the signal to the end of the process; must be below the pod's terminationGracePeriodSeconds.
    stop_s: float = Field(default=20.0, gt=0, le=600)
    #: How long the start waits for Kafka, Redis and the API server before it gives up with a sentence.
    start_s: float = Field(default=60.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kafka_security.startswith("SASL") and not (
            self.kafka_sasl_username and self.kafka_sasl_password.get_secret_value()
        ):
            raise ValueError("SASL needs DRYSTONE_KAFKA_SASL_USERNAME and DRYSTONE_KAFKA_SASL_PASSWORD")
        if not self.redis_url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("DRYSTONE_REDIS_URL must begin with redis://, rediss:// or unix://")
        if not are_brokers(self.kafka_bootstrap):
            raise ValueError("DRYSTONE_KAFKA_BOOTSTRAP must be host:port, several separated by commas")
        for name in ("kafka_ca_file", "kafka_cert_file", "kafka_key_file", "redis_ca_file", "redis_cert_file",
                     "redis_key_file"):  # fmt: skip
            file: Path | None = getattr(self, name)
            if file is not None and not file.is_file():
                raise ValueError(f"{PREFIX}{name.upper()} names no readable file")
        self._certificates()
        if self.kubeconfig and not Path(self.kubeconfig).expanduser().is_file():
            raise ValueError("DRYSTONE_KUBECONFIG names no readable file")
        return self

    def _certificates(self) -> None:
        """Files that nothing would read, or that cannot be read, are mistakes: who gives them means to be safe."""
        for part, secure, how in (
            ("kafka", self.kafka_security.endswith("SSL"), "DRYSTONE_KAFKA_SECURITY SSL or SASL_SSL"),
            ("redis", self.redis_url.startswith("rediss://"), "a DRYSTONE_REDIS_URL that begins with rediss://"),
        ):
            files = {kind: getattr(self, f"{part}_{kind}_file") for kind in ("ca", "cert", "key")}
            given = [f"{PREFIX}{part.upper()}_{kind.upper()}_FILE" for kind, file in files.items() if file]
            if not given:
                continue
            if not secure:
                raise ValueError(f"{given[0]} needs {how}")
            if files["key"] and not files["cert"]:
                raise ValueError(f"{PREFIX}{part.upper()}_KEY_FILE needs {PREFIX}{part.upper()}_CERT_FILE")
            try:
                _tls(files["ca"], files["cert"], files["key"])
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"{', '.join(given)}: no certificate or key that can be read ({error})") from None

    @property
    def job_topics(self) -> tuple[str, ...]:
        """Topics that it reads beside those of the table, where it does."""
        return ()

    @property
    def secrets(self) -> list[str]:
        """What must never be printed."""
        in_url = urlsplit(self.redis_url).password or ""
        return [
            self.kafka_sasl_password.get_secret_value(),
            self.redis_password.get_secret_value(),
            unquote(in_url),
            in_url,
        ]

    def kafka_tls(self) -> ssl.SSLContext | None:
        if not self.kafka_security.endswith("SSL"):
            return None
        return _tls(self.kafka_ca_file, self.kafka_cert_file, self.kafka_key_file)


def _tls(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    if cert is not None:
        context.load_cert_chain(str(cert), str(key) if key else None)
    return context


S = TypeVar("S", bound=CommonSettings)


def read_settings(kind: type[S]) -> S:
    """The settings, or WrongSettings with one sentence that names the variable."""
    try:
        return kind()
    except ValidationError as error:
        raise WrongSettings(_sentence(error)) from None
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        raise WrongSettings(
            f"{PREFIX}{field[1].upper()} is no JSON." if field else f"The settings cannot be read: {error}."
        ) from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if not first["loc"]:
        return f"{message}{more}."
    field, *within = first["loc"]
    name = f"{PREFIX}{str(field).upper()}" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in within)
    return f"{name}: {message[:1].lower()}{message[1:]}{more}."
