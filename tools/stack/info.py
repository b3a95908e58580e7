"""Where a running stack is reached, as one value that other processes can load.

It is saved in the stack's folder each time a process starts or ends, so what `load` returns is how things stand.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.stack.accounts import ACCOUNTS, ADMIN
from tools.stack.errors import StackError
from tools.stack.paths import write_private
from tools.stack.ports import LOOPBACK
from tools.stack.process import ProcessId
from tools.stack.settings import Settings
from tools.stack.tls import Certificates

FILE = "stack.json"


@dataclass(frozen=True, slots=True)
class StackInfo:
    """One stack. An address of a part that it does not have is a StackError, unless it says None."""

    directory: Path
    settings: Settings
    ports: Mapping[str, int]
    tokens: Mapping[str, str]
    """The secret of each account, by its short name (`binder`, `tenant-a`, `admin`)."""
    processes: Mapping[str, ProcessId]
    passwords: Mapping[str, str] = field(default_factory=dict)
    """Of Kafka's and Redis' accounts, where the stack is secured; both have the same."""

    @property
    def parts(self) -> tuple[str, ...]:
        return self.settings.parts

    @property
    def api_server(self) -> str:
        return f"https://{self.address('apiserver')}"

    @property
    def ca_file(self) -> Path:
        # The API server writes the certificate that signed its own behind it into the same file.
        return self.directory / "pki" / "apiserver.crt"

    @property
    def admin_token(self) -> str:
        return self.tokens[ADMIN]

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.kubeconfig_for(ADMIN)

    @property
    def kafka_bootstrap(self) -> str:
        return self.address("kafka")

    @property
    def redis_url(self) -> str:
        return f"redis{'s' if self.settings.secured else ''}://{self.address('redis')}/0"

    @property
    def certificates(self) -> Certificates:
        """Of Kafka and Redis, where the stack is secured."""
        return Certificates(self.directory / "tls")

    def environment_for(self, account: str) -> dict[str, str]:
        """What a service must be told to reach Kafka and Redis as this account, beyond where an open stack is."""
        if not self.settings.secured:
            return {}
        authority, password = str(self.certificates.authority), self.passwords[account]
        return {
            "DRYSTONE_KAFKA_SECURITY": "SASL_SSL",
            "DRYSTONE_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
            "DRYSTONE_KAFKA_SASL_USERNAME": account,
            "DRYSTONE_KAFKA_SASL_PASSWORD": password,
            "DRYSTONE_KAFKA_CA_FILE": authority,
            "DRYSTONE_REDIS_URL": self.redis_url,
            "DRYSTONE_REDIS_USERNAME": account,
            "DRYSTONE_REDIS_PASSWORD": password,
            "DRYSTONE_REDIS_CA_FILE": authority,
        }

    @property
    def prometheus_url(self) -> str | None:
        return f"http://{self.address('prometheus')}" if "prometheus" in self.parts else None

    @property
    def prometheus_targets(self) -> Path:
        """What Prometheus reads, as a file_sd list that may be replaced at any time."""
        return self.directory / "prometheus" / "targets.json"

    @property
    def audit_log(self) -> Path | None:
        return self.directory / "apiserver" / "audit.log" if self.settings.audit else None

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each part that runs or is paused."""
        return {part: process.pid for part, process in self.processes.items()}

    @property
    def log_files(self) -> dict[str, Path]:
        return {part: self.log_file(part) for part in self.parts}

    def log_file(self, part: str) -> Path:
        return self.directory / "log" / f"{part}.log"

    def address(self, part: str, port: str = "") -> str:
        """Host and port of a part; `port` names a second one."""
        name = f"{part}-{port}" if port else part
        if name not in self.ports:
            raise StackError(f"This stack was started without {part}; it has {', '.join(self.parts)}.")
        return f"{LOOPBACK}:{self.ports[name]}"

    def kubeconfig_for(self, account: str) -> Path:
        """The kubeconfig of an account, by its short name or its full user name."""
        names = [name for name, known in ACCOUNTS.items() if account in (name, known.user)]
        if not names:
            raise StackError(f"No account {account}; there are {', '.join(ACCOUNTS)}.")
        return self.directory / "kubeconfig" / f"{names[0]}.yaml"

    def save(self) -> None:
        write_private(self.directory / FILE, json.dumps(asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def load(cls, directory: Path) -> "StackInfo":
        """The stack of a folder; a StackError if there is none."""
        file = Path(directory).absolute() / FILE
        try:
            saved: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                directory=Path(saved["directory"]),
                settings=_settings(saved["settings"]),
                ports={name: int(port) for name, port in saved["ports"].items()},
                tokens=dict(saved["tokens"]),
                processes={part: ProcessId(**process) for part, process in saved["processes"].items()},
                passwords=dict(saved["passwords"]),
            )
        except FileNotFoundError:
            raise StackError(f"No stack in {directory}: `drystone stack up --dir {directory}` starts one.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise StackError(f"{file} is not a stack that this version wrote: {error!r}") from error


def _settings(saved: dict[str, Any]) -> Settings:
    lists = {part: tuple(arguments) for part, arguments in saved["extra_args"].items()}
    return Settings(**{**saved, "parts": tuple(saved["parts"]), "extra_args": lists})
