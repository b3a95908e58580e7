"""Templates that would break out of their pod, each refused at the field that does it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from libs.contracts.podsecurity import MOST_GRACE_S, insecure, insecure_annotations

GOOD: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "terminationGracePeriodSeconds": 30,
    "volumes": [{"name": "scratch", "emptyDir": {}}],
    "initContainers": [
        {"name": "init", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
    "containers": [
        {"name": "main", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
}


def with_(path: str, value: Any) -> dict[str, Any]:
    """GOOD with one field changed; numbers in the path are indices of lists."""
    spec = copy.deepcopy(GOOD)
    *parts, last = path.split(".")
    at: Any = spec
    for part in parts:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[last] = value
    return spec


def test_a_good_template_passes_both_profiles() -> None:
    assert insecure(GOOD, "restricted") is None
    assert insecure(GOOD, "baseline") is None


ANYWHERE: list[tuple[str, Any]] = [
    ("hostNetwork", True),
    ("hostPID", "yes"),
    ("nodeName", "n1"),
    ("schedulerName", "default-scheduler"),
    ("priorityClassName", "system-node-critical"),
    ("terminationGracePeriodSeconds", -1),
    ("terminationGracePeriodSeconds", MOST_GRACE_S + 1),
    ("terminationGracePeriodSeconds", True),
    ("terminationGracePeriodSeconds", "30"),
    ("containers", {}),
    ("containers", "main"),
    ("containers", None),
    ("containers", [None]),
    ("initContainers", {"name": "init"}),
    ("volumes", {"name": "root", "hostPath": {"path": "/"}}),
    ("volumes", [{"name": "root", "hostPath": {"path": "/"}}]),
    ("volumes", ["root"]),
    ("securityContext", "none"),
    ("securityContext.sysctls", [{"name": "kernel.shm_rmid_forced", "value": "0"}]),
    ("ephemeralContainers", [{"name": "shell"}]),
    ("containers.0.securityContext.privileged", True),
    ("containers.0.securityContext.procMount", "Unmasked"),
    ("containers.0.securityContext.capabilities", ["SYS_ADMIN"]),
    ("containers.0.securityContext.capabilities.add", ["SYS_ADMIN"]),
    ("containers.0.securityContext.capabilities.add", "SYS_ADMIN"),
    ("containers.0.ports", [{"hostPort": 22}]),
    ("containers.0.ports", {"hostPort": 22}),
    ("containers.0.livenessProbe", {"httpGet": {"host": "169.254.169.254", "path": "/"}}),
    ("containers.0.lifecycle", {"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}}),
    ("initContainers.0.securityContext.privileged", True),
]
ON_POD_AND_CONTAINER: list[tuple[str, Any]] = [
    ("seccompProfile", {"type": "Unconfined"}),
    ("seccompProfile", {"type": None}),
    ("seccompProfile", "RuntimeDefault"),
    ("appArmorProfile", {"type": "Unconfined"}),
    ("seLinuxOptions", {"type": "spc_t"}),
    ("seLinuxOptions", {"type": ["container_t"]}),
    ("seLinuxOptions", {"user": "system_u"}),
    ("seLinuxOptions", {"role": "sysadm_r"}),
    ("windowsOptions", {"hostProcess": True}),
    ("windowsOptions", ["hostProcess"]),
]


@pytest.mark.parametrize("profile", ["baseline", "restricted"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        *ANYWHERE,
        *((f"securityContext.{path}", value) for path, value in ON_POD_AND_CONTAINER),
        *((f"containers.0.securityContext.{path}", value) for path, value in ON_POD_AND_CONTAINER),
        *((f"initContainers.0.securityContext.{path}", value) for path, value in ON_POD_AND_CONTAINER),
    ],
)
def test_what_reaches_the_host_is_refused_where_it_stands(path: str, value: Any, profile: str) -> None:
    found = insecure(with_(path, value), profile)
    assert found is not None
    assert found.path.split(".")[0] == path.split(".")[0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("securityContext.runAsNonRoot", False),
        ("securityContext.runAsUser", 0),
        ("containers.0.securityContext.runAsNonRoot", False),
        ("containers.0.securityContext.runAsUser", 0),
        ("containers.0.securityContext.allowPrivilegeEscalation", True),
        ("containers.0.securityContext.capabilities.drop", ["CHOWN"]),
        ("containers.0.securityContext.capabilities.add", ["CHOWN"]),
        ("securityContext.seccompProfile", None),
        ("volumes", [{"name": "share", "nfs": {"server": "s", "path": "/"}}]),
    ],
)
def test_what_only_the_restricted_profile_refuses(path: str, value: Any) -> None:
    assert insecure(with_(path, value), "restricted") is not None
    assert insecure(with_(path, value), "baseline") is None


@pytest.mark.parametrize("type_", ["container_t", "container_init_t", "container_kvm_t", ""])
def test_the_types_that_containers_run_under_are_fine(type_: str) -> None:
    assert (
        insecure(with_("containers.0.securityContext.seLinuxOptions", {"type": type_, "level": "s0:c1"}), "baseline")
        is None
    )


def test_the_older_spelling_of_apparmor_is_read_too() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/main"
    assert insecure_annotations({key: "unconfined"}) is not None
    assert insecure_annotations({key: "runtime/default", "team": "vision"}) is None
