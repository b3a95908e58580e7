"""Settings of the metrics-collector, read from the environment beside the common ones."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from libs.host.settings import CommonSettings


class CollectorSettings(CommonSettings):
    #: Prometheus, or what speaks its query API.
    prometheus_url: str = "http://127.0.0.1:9090"
    #: Bearer token of a proxy in front of Prometheus.
    prometheus_token: SecretStr = SecretStr("")
    #: A file with that token, read at every query: mounted tokens change.
    prometheus_token_file: Path | None = None
    #: With https://: who signs Prometheus' certificate (PEM); else the machine's own list.
    prometheus_ca_file: Path | None = None
    #: Between two queries. A changed gauge is known at most this long after Prometheus scraped it.
    interval_s: float = Field(default=1.0, ge=0.1, le=300)
    #: After it a query counts as failed.
    query_timeout_s: float = Field(default=5.0, gt=0, le=60)
    #: The label that names the node; empty: the usual ones are tried.
    node_label: str = ""
    #: Number of this replica's share of the nodes, from 0.
    shard: int = Field(default=0, ge=0)
    #: Nodes are divided among so many replicas.
    shards: int = Field(default=1, ge=1, le=1024)
    #: Time constant of the smoothing of utilisation; 0: none. Memory is never smoothed.
    smoothing_s: float = Field(default=1.0, ge=0, le=600)
    #: A change of memory below this is not told by itself.
    mib_step: int = Field(default=1, ge=1)
    #: A change of utilisation below this, in points, is not told by itself.
    util_step: float = Field(default=1.0, ge=0, le=100)
    #: Facts are told again after this long, changed or not.
    refresh_s: float = Field(default=60.0, gt=0)
    #: A node that Prometheus has not shown for so long has no facts any more.
    vanish_s: float = Field(default=30.0, gt=0)
    #: So much memory in use on a device that no bound pod is charged for may be a leak.
    leak_mib: int = Field(default=512, ge=1)
    #: It is called one after this long.
    leak_s: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _mine(self) -> Self:
        if self.shard >= self.shards:
            raise ValueError("DRYSTONE_SHARD must be below DRYSTONE_SHARDS")
        if not self.prometheus_url.startswith(("http://", "https://")):
            raise ValueError("DRYSTONE_PROMETHEUS_URL must begin with http:// or https://")
        if self.prometheus_token_file is not None and self.prometheus_token.get_secret_value():
            raise ValueError("DRYSTONE_PROMETHEUS_TOKEN and DRYSTONE_PROMETHEUS_TOKEN_FILE: set one of them")
        for name in ("prometheus_token_file", "prometheus_ca_file"):
            file: Path | None = getattr(self, name)
            if file is not None and not file.is_file():
                raise ValueError(f"DRYSTONE_{name.upper()} names no readable file")
        return self

    def prometheus_bearer(self) -> str:
        """The token as it is now. Raises OSError."""
        if self.prometheus_token_file is not None:
            return self.prometheus_token_file.read_text(encoding="utf-8").strip()
        return self.prometheus_token.get_secret_value()

    def prometheus_tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.prometheus_ca_file) if self.prometheus_ca_file else None

    @property
    def secrets(self) -> list[str]:
        return [*super().secrets, self.prometheus_token.get_secret_value()]
