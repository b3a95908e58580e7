"""Which job a pod belongs to, its queue, priority, tenant and gang minimum. First rule that applies wins.

The tenant comes from the namespace and the configuration, never from what the pod says about itself. A pod that names a
PodGroup whose minimum is not known yet bars its job, because treating it as a single would place a gang in part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from libs.domain import keys
from libs.domain.bounds import MOST_TASKS
from libs.domain.jobs import Barred, JobHead
from libs.domain.verdicts import Reason
from libs.kube.declared import declared
from libs.kube.pods import PodView
from libs.observe import trace

_MIN_ANNOTATIONS: Final = (
    "gang.scheduling.koordinator.sh/min-available",
    "pod-group.scheduling.sigs.k8s.io/min-available",
)


#: Where PodGroups are, by the project that brings them; each has the minimum in `spec.minMember`.
POD_GROUPS: Final[Mapping[str, str]] = {
    "scheduler-plugins": "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    "volcano": "/apis/scheduling.volcano.sh/v1beta1/podgroups",
    "kai": "/apis/scheduling.run.ai/v2alpha2/podgroups",
}


#: Namespaces that are named where a queue is for others.
_SPACES_NAMED: Final = 4


def _no_group(_namespace: str, _name: str) -> int | None:
    return None


def _no_words(_namespace: str, _name: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Known:
    """What the caller knows of the cluster. `tenants` maps namespace -> tenant (else the namespace is the tenant),
    `namespace_queues` namespace -> queue path, `queue_paths` a queue's plain name -> its path, `pod_group_min`
    (namespace, name) -> minimum or None where no PodGroup of that name has been seen (of several, by different
    projects, the greatest: their pods make one job), `pod_group_annotations` what it says for its pods, `priorities`
    class name -> value."""

    tenants: Mapping[str, str] = field(default_factory=dict)
    namespace_queues: Mapping[str, str] = field(default_factory=dict)
    queue_paths: Mapping[str, str] = field(default_factory=dict)
    #: path -> the namespaces that the queue is for, of queues that say some.
    queue_namespaces: Mapping[str, Collection[str]] = field(default_factory=dict)
    pod_group_min: Callable[[str, str], int | None] = _no_group
    priorities: Mapping[str, int] = field(default_factory=dict)
    pod_group_annotations: Callable[[str, str], Mapping[str, str]] = _no_words
    #: Of one TrainingJob, all roles together; one with more is told so and nothing else is done about it.
    most_tasks: int = MOST_TASKS


NOTHING_KNOWN: Final = Known()


def job_of(pod: PodView, known: Known = NOTHING_KNOWN) -> JobHead:
    """The head of the pod's job, as far as this pod tells. `declared` is at least the gang's minimum."""
    key, gang_min, uid = _key(pod, known)
    group = pod_group_of(pod) if key.startswith("podgroup/") else ""
    said = declared(pod.annotations, known.pod_group_annotations(pod.namespace, group) if group else None)
    return JobHead(
        key=key,
        tenant=known.tenants.get(pod.namespace, pod.namespace),
        namespace=pod.namespace,
        queue=queue_of(pod, known),
        uid=uid,
        priority=priority_of(pod, known),
        gang_min=gang_min,
        declared=gang_min,
        preempts=pod.preempts,
        created=pod.created,
        attempt=pod.attempt,
        preemptible=said.preemptible,
        expected_s=said.expected_s,
        checkpoint_s=said.checkpoint_s,
        workload=workload_of(pod) or key,
        barred=_barred(pod, known),
        traceparent=trace.valid(pod.annotations.get(keys.TRACEPARENT, "")),
    )


def workload_of(pod: PodView) -> str:
    """ "<kind>/<namespace>/<uid>" of what controls the pod and makes it again, empty where nothing does."""
    for owner in pod.owners:
        if owner.controller:
            return f"{owner.kind}/{pod.namespace}/{owner.uid}"
    return ""


def job_key(pod: PodView) -> str:
    """Only the key: the same as `job_of(pod).key`."""
    return _key(pod, NOTHING_KNOWN)[0]


def _barred(pod: PodView, known: Known) -> Barred | None:
    if closed := not_open(_named_queue(pod), pod.namespace, known):
        return closed
    if _own_job(pod) or _named_gang(pod):
        return None
    group = pod_group_of(pod)
    if group and _group_min(pod, group, known) is None:
        return Barred(
            Reason.POD_GROUP,
            f"PodGroup {pod.namespace}/{group} has not been seen and the pod does not say its minimum",
            f"that PodGroup created, or the annotation {keys.GANG_MIN} on the pods",
        )
    return None


def pod_group_of(pod: PodView) -> str:
    for key in keys.POD_GROUP_LABELS:
        name = pod.labels.get(key) or pod.annotations.get(key)
        if name:
            return name
    return ""


def queue_of(pod: PodView, known: Known = NOTHING_KNOWN) -> str:
    return resolve_queue(_named_queue(pod), pod.namespace, known)


def _named_queue(pod: PodView) -> str:
    return (
        pod.annotations.get(keys.QUEUE)
        or pod.labels.get(keys.QUEUE)
        or next((pod.labels[k] for k in keys.QUEUE_LABELS if pod.labels.get(k)), "")
    )


def resolve_queue(named: str, namespace: str, known: Known) -> str:
    """The queue's path: as named, else the namespace's, else the default."""
    if named:
        return known.queue_paths.get(named, named)
    return known.namespace_queues.get(namespace, keys.DEFAULT_QUEUE)


def not_open(named: str, namespace: str, known: Known) -> Barred | None:
    """Why who is there may not name this queue. A queue above it may be for others: that is no matter."""
    path = resolve_queue(named, namespace, known)
    spaces = known.queue_namespaces.get(path, ()) if named else ()
    if not spaces or namespace in spaces:
        return None
    some = sorted(spaces)
    more = f" and {len(some) - _SPACES_NAMED} more" if len(some) > _SPACES_NAMED else ""
    return Barred(
        Reason.QUEUE_CLOSED,
        f"queue {path} is for the namespaces {', '.join(some[:_SPACES_NAMED])}{more} alone, this one is {namespace}",
        "another queue, or this namespace among the Queue's `namespaces`",
        never=True,
    )


def priority_of(pod: PodView, known: Known = NOTHING_KNOWN) -> int:
    """The PriorityClass' value as admission wrote it (or as known by name), else the label's word, else the value that
    admission defaulted to."""
    if pod.priority_class:
        return pod.priority if pod.priority is not None else known.priorities.get(pod.priority_class, 0)
    word = keys.PRIORITY_WORDS.get(pod.priority_word)
    return word if word is not None else pod.priority or 0


def _key(pod: PodView, known: Known) -> tuple[str, int, str]:
    own = _own_job(pod)
    if own:
        owner = pod.training_job
        return own, max(pod.gang_min, 1), owner.uid if owner else ""
    gang = _named_gang(pod)
    if gang:
        return f"gang/{pod.namespace}/{gang}", max(pod.gang_min, 1), ""
    group = pod_group_of(pod)
    if group:
        return f"podgroup/{pod.namespace}/{group}", _group_min(pod, group, known) or 1, ""
    return f"pod/{pod.namespace}/{pod.name}", 1, ""


def _own_job(pod: PodView) -> str:
    """The key on a pod that we created. Believed only beside an owner that agrees with it: anybody can write an
    annotation, but only into his own namespace, and the key must be what the owner's name makes it."""
    owner = pod.training_job
    return f"job/{pod.namespace}/{owner.name}" if owner is not None else ""


def _named_gang(pod: PodView) -> str:
    return pod.annotations.get(keys.JOB) or pod.labels.get(keys.JOB) or ""


def _group_min(pod: PodView, group: str, known: Known) -> int | None:
    seen = known.pod_group_min(pod.namespace, group)
    if seen is not None:
        return max(seen, 1)
    if pod.gang_min:
        return pod.gang_min
    for key in _MIN_ANNOTATIONS:
        said = pod.annotations.get(key) or pod.labels.get(key) or ""
        if said.isascii() and said.isdecimal() and 0 < len(said) <= 6 and int(said) > 0:
            return int(said)
    return None
