"""What pods say of topology and precision, in our annotations and in Kueue's. Nothing here raises: what cannot be read
becomes an entry of `problems` with a sentence for the user.

Kueue's `podset-required-topology` and `podset-preferred-topology` mean the pods of one template, as ours do;
`podset-slice-required-topology` with `podset-slice-size` means each group of so many pods of consecutive index.
`podset-unconstrained-topology` wishes for nothing. Source: Kueue, "Topology Aware Scheduling", user-facing API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from libs.domain import keys
from libs.domain.precision import PRECISIONS, Precision, is_precision
from libs.domain.topology import Near, Topology

_REQUIRED: Final = (keys.TOPOLOGY_REQUIRED, "kueue.x-k8s.io/podset-required-topology")
_PREFERRED: Final = (keys.TOPOLOGY_PREFERRED, "kueue.x-k8s.io/podset-preferred-topology")
_GROUP_REQUIRED: Final = (keys.GROUP_TOPOLOGY_REQUIRED, "kueue.x-k8s.io/podset-slice-required-topology")
_GROUP_PREFERRED: Final = (keys.GROUP_TOPOLOGY_PREFERRED,)
_SIZE: Final = (keys.GROUP_SIZE, "kueue.x-k8s.io/podset-slice-size")
_JOB: Final = (keys.JOB_TOPOLOGY_REQUIRED, keys.JOB_TOPOLOGY_PREFERRED)
#: Everything that is read here: a pod without any of it costs one look.
KEYS: Final = frozenset({*_REQUIRED, *_PREFERRED, *_GROUP_REQUIRED, *_GROUP_PREFERRED, *_SIZE, *_JOB})
#: Where a pod's place among its likes is written, the first that is there.
_INDEX: Final = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "kueue.x-k8s.io/pod-group-pod-index",
    "apps.kubernetes.io/pod-index",
)
_LEVEL: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MOST_SIZE: Final = 100_000


class NearSpec(msgspec.Struct, frozen=True, rename="camel"):
    """As job objects say it."""

    required: str = ""
    preferred: str = ""


class GroupSpec(NearSpec, frozen=True, rename="camel"):
    """For each `size` replicas of consecutive index."""

    size: int = 0


class RoleNearSpec(NearSpec, frozen=True, rename="camel"):
    groups: GroupSpec | None = None


class PrecisionSpec(msgspec.Struct, frozen=True, rename="camel"):
    kind: str = ""
    required: bool = False


def topology_of(
    labels: Mapping[str, str], annotations: Mapping[str, str], problems: list[str], index: int | None = None
) -> Topology | None:
    """`index` is the pod's place among its likes where the caller knows it, else labels and annotations tell."""
    if KEYS.isdisjoint(annotations):
        return None
    job = _near(annotations, _JOB[:1], _JOB[1:], problems)
    role = _near(annotations, _REQUIRED, _PREFERRED, problems)
    group = _near(annotations, _GROUP_REQUIRED, _GROUP_PREFERRED, problems)
    number = 0
    if group:
        number = _number(labels, annotations, problems, index)
    found = Topology(job, role, group, number)
    return found or None


def _near(
    annotations: Mapping[str, str], required: tuple[str, ...], preferred: tuple[str, ...], problems: list[str]
) -> Near:
    return Near(_level(annotations, required, problems), _level(annotations, preferred, problems))


def _level(annotations: Mapping[str, str], names: tuple[str, ...], problems: list[str]) -> str:
    name = next((name for name in names if name in annotations), "")
    said = annotations.get(name, "").strip()
    if said and not _LEVEL.fullmatch(said):
        problems.append(f"{name}: {said[:80]!r} is neither the name of a level nor the key of a label")
        return ""
    return said


def _number(labels: Mapping[str, str], annotations: Mapping[str, str], problems: list[str], index: int | None) -> int:
    """Which group the pod is in."""
    name = next((name for name in _SIZE if name in annotations), "")
    size = _whole(annotations.get(name, ""))
    if not 1 <= size <= _MOST_SIZE:
        problems.append(f"{name or keys.GROUP_SIZE}: {annotations.get(name, '')[:40]!r} is not a number of pods")
        return 0
    if index is None:
        said = next((m[k] for k in _INDEX for m in (labels, annotations) if k in m), "")
        index = _whole(said)
        if index < 0:
            problems.append(f"{name}: a pod without an index ({', '.join(_INDEX)}) is in no group")
            return 0
    return index // size


def _whole(text: str) -> int:
    return int(text) if 0 < len(text) <= 9 and text.isascii() and text.isdecimal() else -1


def precision_of(annotations: Mapping[str, str], problems: list[str]) -> tuple[Precision, bool]:
    """What the pod computes in, and whether only devices that support it will do."""
    said = annotations.get(keys.PRECISION)
    if said is None:
        return "", False
    kind = said.strip().lower()
    if not is_precision(kind):
        problems.append(f"{keys.PRECISION}: {said[:40]!r} is none of {', '.join(PRECISIONS)}")
        return "", False
    required = annotations.get(keys.PRECISION_REQUIRED, "false").strip().lower()
    if required not in ("true", "false"):
        problems.append(f"{keys.PRECISION_REQUIRED}: {required[:40]!r} is neither true nor false")
    return kind, required == "true"


def annotations_of(
    job: NearSpec | None,
    role: RoleNearSpec | None,
    of_job: PrecisionSpec | None,
    of_role: PrecisionSpec | None,
) -> dict[str, str]:
    """What a job object says of a role's pods, as their annotations say it. The role's precision stands before the
    job's."""
    said: dict[str, str] = {}
    if job is not None:
        said |= {keys.JOB_TOPOLOGY_REQUIRED: job.required, keys.JOB_TOPOLOGY_PREFERRED: job.preferred}
    if role is not None:
        said |= {keys.TOPOLOGY_REQUIRED: role.required, keys.TOPOLOGY_PREFERRED: role.preferred}
        groups = role.groups
        if groups is not None:
            said |= {
                keys.GROUP_TOPOLOGY_REQUIRED: groups.required,
                keys.GROUP_TOPOLOGY_PREFERRED: groups.preferred,
                keys.GROUP_SIZE: str(groups.size),
            }
    precision = of_role or of_job
    if precision is not None:
        said |= {keys.PRECISION: precision.kind, keys.PRECISION_REQUIRED: "true" if precision.required else ""}
    return {key: value for key, value in said.items() if value}
