"""Which version of each real part the stack runs.

Pinned, so that two machines measure the same thing. A version is part of the path in the cache, so raising one here
never runs a stale binary. After a change, `python -m tools.stack pin` writes the module files anew.
"""

from typing import Final

KUBERNETES: Final = "1.36.3"
ETCD: Final = "3.6.16"
KWOK: Final = "0.8.0"
KAFKA: Final = "4.1.1"
GO: Final = "1.26.0"
"""The oldest Go that builds this Kubernetes."""


def staging_version(kubernetes: str) -> str:
    """The version under which a Kubernetes release publishes its libraries: 1.36.3 becomes v0.36.3."""
    major, minor, patch = kubernetes.split(".")
    if major != "1":
        raise ValueError(f"Kubernetes {kubernetes}: only 1.x publishes its libraries as 0.x")
    return f"v0.{minor}.{patch}"
