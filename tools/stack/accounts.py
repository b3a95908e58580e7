"""Who may talk to the API server of a stack: one fixed token for each account.

RBAC is on, so a service under its own account can do what the deployment's roles allow and nothing else. The names
equal those of the real service accounts; only the way they prove who they are (a fixed token) differs from a cluster.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = "drystone-system"
ADMIN = "admin"
_MASTERS = ("system:masters",)


@dataclass(frozen=True, slots=True)
class Account:
    """A user as the API server sees it."""

    user: str
    groups: tuple[str, ...] = ()


def _service_account(name: str) -> Account:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
    return Account(f"system:serviceaccount:{NAMESPACE}:{name}", groups)


SERVICES = ("watcher", "metrics-collector", "placement", "preemptor", "binder", "console")
ACCOUNTS: dict[str, Account] = {
    ADMIN: Account("drystone-admin", _MASTERS),
    **{name: _service_account(name) for name in SERVICES},
    "tenant-a": Account("tenant-a"),
    # The other parts have names of their own, so that the audit log tells their writes apart.
    "scheduler": Account("system:kube-scheduler"),
    # Its built-in role covers only what its controllers do not do under accounts of their own.
    "controller-manager": Account("system:kube-controller-manager", _MASTERS),
    "kwok": Account("kwok", _MASTERS),
}


PRINCIPALS = (ADMIN, *SERVICES, "tenant-a")
"""Who may have an account at Kafka and Redis where the stack is secured."""


def new_tokens() -> dict[str, str]:
    """A fresh secret for each account."""
    return {name: secrets.token_urlsafe(24) for name in ACCOUNTS}


def new_passwords() -> dict[str, str]:
    """A fresh secret for each account at Kafka and Redis; others than the API server's."""
    return {name: secrets.token_urlsafe(24) for name in PRINCIPALS}


def token_file(tokens: Mapping[str, str]) -> str:
    """The API server's token file: token, user, uid, groups."""
    lines = []
    for name, token in tokens.items():
        account = ACCOUNTS[name]
        groups = f',"{",".join(account.groups)}"' if account.groups else ""
        lines.append(f"{token},{account.user},{name}{groups}\n")
    return "".join(lines)


def kubeconfig(server: str, ca_file: Path, name: str, token: str) -> str:
    """A kubeconfig with this one account."""
    return f"""\
apiVersion: v1
kind: Config
clusters:
- name: drystone
  cluster:
    server: {server}
    certificate-authority: {ca_file}
users:
- name: {name}
  user:
    token: {token}
contexts:
- name: {name}
  context:
    cluster: drystone
    user: {name}
current-context: {name}
"""
