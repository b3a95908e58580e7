"""What a submitted pod spec may ask for: the Pod Security Standards, at admission to Drystone.

https://kubernetes.io/docs/concepts/security/pod-security-standards/

The API server checks the same where a namespace is labelled for it; here it is checked whatever the labels say, before
an object exists. A field whose shape is wrong is refused too: what cannot be read cannot be judged. Where a rule holds
for a pod and for its containers, both places are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from libs.domain import keys

#: A victim holds its room for as long as this at the most after it was evicted.
MOST_GRACE_S: Final = 3600
_ADDABLE: Final = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_PLAIN_VOLUMES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
_SELINUX_TYPES: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
_PROFILES: Final = frozenset({"RuntimeDefault", "Localhost"})
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class Insecure:
    """The first thing that is not allowed, and where it stands below the pod spec (or template's metadata)."""

    reason: str
    path: str


def insecure(spec: dict[str, Any], profile: str) -> Insecure | None:
    """The first field of a pod spec that the profile (`baseline` or `restricted`) does not allow."""
    return next(_pod_faults(spec, profile), None)


def insecure_annotations(annotations: dict[str, str]) -> Insecure | None:
    """AppArmor as it was said before it had a field."""
    for key, value in annotations.items():
        if key.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            return Insecure("an unconfined AppArmor profile is not allowed", "annotations")
    return None


def _pod_faults(spec: dict[str, Any], profile: str) -> Iterator[Insecure]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield Insecure("host namespaces are not allowed", name)
    if spec.get("nodeName"):
        yield Insecure("the node is chosen by Drystone", "nodeName")
    if spec.get("schedulerName") not in (None, keys.SCHEDULER_NAME):
        yield Insecure("another scheduler is named", "schedulerName")
    named = spec.get("priorityClassName")
    if named is not None and (not isinstance(named, str) or named.startswith("system-")):
        yield Insecure("priority classes of the system are not for jobs", "priorityClassName")
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int) or not 0 <= grace <= MOST_GRACE_S):
        yield Insecure(f"must be a whole number from 0 to {MOST_GRACE_S}", "terminationGracePeriodSeconds")
    if spec.get("ephemeralContainers"):
        yield Insecure("cannot be asked for at creation", "ephemeralContainers")
    pod = spec.get("securityContext")
    if pod is not None and not isinstance(pod, dict):
        yield Insecure("is no object", "securityContext")
        return
    yield from _context_faults(pod or {}, "securityContext")
    if pod and pod.get("sysctls"):
        yield Insecure("sysctls are not allowed", "securityContext.sysctls")
    if profile == "restricted" and pod and _root(pod.get("runAsUser")):
        yield Insecure("must not be 0", "securityContext.runAsUser")
    yield from _volume_faults(spec.get("volumes"), profile)
    if not spec.get("containers"):
        yield Insecure("at least one container is needed", "containers")
    for group in ("containers", "initContainers"):
        listed = spec.get(group)
        if listed is None:
            continue
        if not isinstance(listed, list):
            yield Insecure("is no list", group)
            continue
        for n, container in enumerate(listed):
            for found in _container_faults(container, pod or {}, profile):
                yield Insecure(found.reason, f"{group}.{n}.{found.path}".rstrip("."))


def _volume_faults(volumes: Any, profile: str) -> Iterator[Insecure]:
    if volumes is None:
        return
    if not isinstance(volumes, list):
        yield Insecure("is no list", "volumes")
        return
    for n, volume in enumerate(volumes):
        if not isinstance(volume, dict):
            yield Insecure("is no object", f"volumes.{n}")
            continue
        kinds = {kind for kind, said in volume.items() if kind != "name" and said is not None}
        refused = kinds - _PLAIN_VOLUMES if profile == "restricted" else kinds & {"hostPath"}
        if refused:
            yield Insecure(f"a volume of kind {min(refused)[:40]} is not allowed", f"volumes.{n}")


def _context_faults(context: dict[str, Any], where: str) -> Iterator[Insecure]:
    """What a pod's and a container's security context have in common."""
    for part in ("seccompProfile", "appArmorProfile"):
        said = context.get(part)
        if said is not None and (not isinstance(said, dict) or not _one_of(said.get("type"), _PROFILES)):
            yield Insecure("must be RuntimeDefault or Localhost", f"{where}.{part}")
    linux = context.get("seLinuxOptions")
    if linux is not None:
        if not isinstance(linux, dict) or not _one_of(linux.get("type") or "", _SELINUX_TYPES):
            yield Insecure("this SELinux type is not allowed", f"{where}.seLinuxOptions.type")
        elif linux.get("user") or linux.get("role"):
            yield Insecure("user and role of SELinux are not allowed", f"{where}.seLinuxOptions")
    windows = context.get("windowsOptions")
    if windows is not None and (not isinstance(windows, dict) or windows.get("hostProcess")):
        yield Insecure("host processes are not allowed", f"{where}.windowsOptions.hostProcess")


def _container_faults(container: Any, pod: dict[str, Any], profile: str) -> Iterator[Insecure]:
    if not isinstance(container, dict):
        yield Insecure("is no object", "")
        return
    context = container.get("securityContext")
    if context is not None and not isinstance(context, dict):
        yield Insecure("is no object", "securityContext")
        return
    context = context or {}
    if context.get("privileged"):
        yield Insecure("privileged containers are not allowed", "securityContext.privileged")
    if context.get("procMount") not in (None, "Default"):
        yield Insecure("only the default procMount is allowed", "securityContext.procMount")
    yield from _context_faults(context, "securityContext")
    yield from _port_faults(container.get("ports"))
    yield from _host_faults(container)
    capabilities = context.get("capabilities")
    if capabilities is not None and not isinstance(capabilities, dict):
        yield Insecure("is no object", "securityContext.capabilities")
        return
    capabilities = capabilities or {}
    for verb in ("add", "drop"):
        listed = capabilities.get(verb)
        if listed is not None and not (isinstance(listed, list) and all(isinstance(c, str) for c in listed)):
            yield Insecure("is no list of names", f"securityContext.capabilities.{verb}")
            return
    refused = set(capabilities.get("add") or ()) - (_ADDABLE if profile == "baseline" else {"NET_BIND_SERVICE"})
    if refused:
        yield Insecure(f"capability {min(refused)[:40]} is not allowed", "securityContext.capabilities.add")
    if profile != "restricted":
        return
    if context.get("allowPrivilegeEscalation") is not False:
        yield Insecure("must be false", "securityContext.allowPrivilegeEscalation")
    if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield Insecure("must be true", "securityContext.runAsNonRoot")
    if _root(context.get("runAsUser")):
        yield Insecure("must not be 0", "securityContext.runAsUser")
    if "ALL" not in (capabilities.get("drop") or ()):
        yield Insecure("must drop ALL", "securityContext.capabilities.drop")
    if not (context.get("seccompProfile") or pod.get("seccompProfile")):
        yield Insecure("must be RuntimeDefault or Localhost", "securityContext.seccompProfile")


def _port_faults(ports: Any) -> Iterator[Insecure]:
    if ports is None:
        return
    if not isinstance(ports, list) or not all(isinstance(port, dict) for port in ports):
        yield Insecure("is no list of ports", "ports")
    elif any(port.get("hostPort") for port in ports):
        yield Insecure("host ports are not allowed", "ports")


def _host_faults(container: dict[str, Any]) -> Iterator[Insecure]:
    """Probes and hooks run by the kubelet, which stands in the host's network."""
    lifecycle = container.get("lifecycle")
    hooks = lifecycle if isinstance(lifecycle, dict) else {}
    probes = {name: container.get(name) for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    probes |= {f"lifecycle.{name}": hooks.get(name) for name in ("postStart", "preStop")}
    for name, probe in probes.items():
        for way in ("httpGet", "tcpSocket"):
            target = probe.get(way) if isinstance(probe, dict) else None
            if isinstance(target, dict) and target.get("host"):
                yield Insecure("another host than the pod is not allowed", f"{name}.{way}.host")


def _root(user: Any) -> bool:
    """0 in any spelling."""
    return user is not None and (not isinstance(user, int) or user == 0)


def _one_of(said: Any, allowed: frozenset[str]) -> bool:
    return isinstance(said, str) and said in allowed
