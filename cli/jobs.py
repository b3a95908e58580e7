"""Jobs as their owner sees them: submit, cancel, status, why. Everything is done as the caller and read from the API
server alone; nothing is asked of Drystone's services, so the answers are there even when they are not.

A job is named by its object's name or by the id that it was submitted with.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from cli.access import kafka as kafka_as_caller
from cli.access import kubeconfig_path, own_namespace, refused, with_cluster
from cli.errors import CommandError
from cli.jobview import Group, Place, evicted_of, find, groups_of, place_of
from cli.out import say, show
from libs.bus.entry import account, why_not
from libs.bus.kafka import KafkaBus
from libs.bus.port import BusMisconfigured, BusUnavailable, Outgoing
from libs.bus.settings import KafkaSettings
from libs.contracts.events import EventType
from libs.contracts.strict import Rejected
from libs.contracts.submission import MOST_BYTES, Submission, parse_submit
from libs.contracts.tenants import TenantPolicy
from libs.contracts.topics import Topic
from libs.domain import keys
from libs.kube import trainingjobs, writes
from libs.kube.errors import ReadFailed
from libs.kube.objects import pod_decoder
from libs.kube.outcomes import Outcome, classify
from libs.kube.port import Kube

_FIELDS: Final = f"spec.schedulerName={keys.SCHEDULER_NAME}"
#: Stands for the tenant's first namespace where an event names none.
_ANY: Final = "default"
_TENANT_LABEL: Final = f"{keys.GROUP}/tenant"


def submit(
    file: Path,
    *,
    kafka: tuple[str, str] | None = None,
    namespace: str = "",
    kubeconfig: Path | None = None,
    as_json: bool = False,
) -> int:
    """With `kafka` (bootstrap servers, topic) as an event. The file's namespace stands before the option's, and that
    before the kubeconfig's; an event that names none goes where the topic's tenant has its first."""
    said = _read(file)
    if not said.get("namespace"):
        into = namespace or ("" if kafka else own_namespace(kubeconfig_path(kubeconfig)))
        said = {**said, "namespace": into} if into else said
    into = said.get("namespace") or _ANY
    try:
        # The API server enforces what the namespace may do; what no event could ask for is refused here already.
        tenant = TenantPolicy(name=into, namespaces=(into,), pod_security="baseline")
    except ValueError:
        raise CommandError(f"{into!r} is no name of a namespace for jobs") from None
    raw = msgspec.json.encode(said)
    submission = parse_submit(raw, tenant)
    if isinstance(submission, Rejected):
        raise CommandError(f"{file}: {submission}")
    row: dict[str, Any]
    if kafka:
        bootstrap, topic = kafka
        asyncio.run(_publish(bootstrap, topic, submission.id, raw))
        row = {"id": submission.id, "topic": topic}
        words = f"{submission.id}: published on {topic}"
    else:
        name, again = with_cluster(kubeconfig, lambda kube, _own: _create(kube, tenant.name, submission))
        row = {"id": submission.id, "namespace": submission.namespace, "name": name, "new": not again}
        words = f"{submission.namespace}/{name}: {'already submitted' if again else 'submitted'}"
    if as_json:
        show(row)
    else:
        say(words)
    return 0


def cancel(job: str, *, namespace: str = "", kubeconfig: Path | None = None, as_json: bool = False) -> int:
    async def body(kube: Kube, own: str) -> tuple[str, str]:
        space, name = _target(job, namespace, own)
        view = await _object(kube, space, name)
        if view is None:
            raise CommandError(f"there is no TrainingJob {space}/{name}")
        answer = await writes.delete_trainingjob(kube, space, view.name, view.uid)
        if classify(answer) not in (Outcome.DONE, Outcome.GONE):
            raise CommandError(refused(f"{space}/{view.name} was not cancelled", answer))
        return space, view.name

    space, name = with_cluster(kubeconfig, body)
    if as_json:
        show({"namespace": space, "name": name, "cancelled": True})
    else:
        say(f"{space}/{name}: cancelled")
    return 0


def status(job: str = "", *, namespace: str = "", kubeconfig: Path | None = None, as_json: bool = False) -> int:
    """Without a job: all of the namespace, or of all namespaces where none is named."""

    async def body(kube: Kube, own: str) -> list[Group]:
        if not job:
            return await _groups(kube, namespace, own)
        space, name = _target(job, namespace, own)
        return [_found(await _groups(kube, space, own), space, name)]

    found = with_cluster(kubeconfig, body)
    if as_json:
        show([group.row() for group in found])
    elif not found:
        say("no jobs")
    else:
        head = ("JOB", "PHASE", "TASKS", "REASON", "MESSAGE")
        rows = [(g.title, g.phase, f"{g.bound}/{g.total}", g.reason or "-", g.message or "-") for g in found]
        widths = [max(len(row[n]) for row in (head, *rows)) for n in range(4)]
        for row in (head, *rows):
            say("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip())
    return 0


def why(job: str, *, namespace: str = "", kubeconfig: Path | None = None, as_json: bool = False) -> int:
    async def body(kube: Kube, own: str) -> Group:
        space, name = _target(job, namespace, own)
        return _found(await _groups(kube, space, own), space, name)

    group = with_cluster(kubeconfig, body)
    if as_json:
        show(group.record())
        return 0
    say(f"{group.title}: {group.phase}, {group.bound} of {group.total} tasks bound")
    if group.reason or group.message:
        message, evicted = evicted_of(group.message)
        place = place_of(message)
        message = message if place is None else message.removesuffix(place.text).rstrip(". ")
        say(f"  {group.reason}: {message}" if message else f"  {group.reason}")
        if place is not None:
            say(f"  {place.text}")
        if evicted is not None:
            say(f"  was evicted for {evicted['beneficiary']} by rule {evicted['rule']} at {evicted['at']}")
    for task in group.placed:
        gpus = f", GPUs {task.gpus}" if task.gpus else ""
        say(f"  {task.name}: {task.phase} on {task.node}{gpus}")
    if group.waits and not group.reason:
        say("  nothing has been said about it yet: it was just created, or no Drystone decides here")
    return 0


def in_line(queue: str, kubeconfig: Path | None = None) -> list[tuple[Group, Place]]:
    """Who waits in a queue, as far as placement has said so, the first first."""
    groups = with_cluster(kubeconfig, lambda kube, own: _groups(kube, "", own))
    told = [(g, place) for g in groups if (place := place_of(g.message)) is not None and place.queue == queue]
    return sorted(told, key=lambda one: (one[1].position, one[0].title))


# --- submit -----------------------------------------------------------------------------------------------------------


def _read(file: Path) -> dict[str, Any]:
    """One job in YAML; JSON is YAML too."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} cannot be read: {error}") from None
    if len(text) > MOST_BYTES:
        raise CommandError(f"{file} has more than {MOST_BYTES} bytes")
    try:
        said = yaml.safe_load(text)
        # As an event would say it: plain JSON, so no dates, no keys that are not text.
        said = json.loads(json.dumps(said, allow_nan=False))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise CommandError(f"{file} is no job in YAML or JSON: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(said, dict):
        raise CommandError(f"{file} is no job: it holds no fields")
    return said


async def _create(kube: Kube, tenant: str, submission: Submission) -> tuple[str, bool]:
    """(object's name, whether it was there before). An answer that got lost is settled by reading."""
    name = trainingjobs.object_name(tenant, submission.id)
    namespace = submission.namespace
    answer = await writes.create_trainingjob(kube, namespace, name, submission.spec, labels={_TENANT_LABEL: tenant})
    outcome = classify(answer)
    if outcome is Outcome.DONE:
        return name, False
    if outcome is not Outcome.EXISTS and not answer.unsure:
        raise CommandError(refused(f"{submission.id} was not submitted", answer))
    seen = await writes.get_trainingjob(kube, namespace, name)
    if not seen.ok:
        raise CommandError(refused(f"whether {submission.id} was submitted is not known; submit it again", answer))
    if trainingjobs.parse(seen.body).spec.hash != submission.hash:
        raise CommandError(f"the id {submission.id} was used for another job ({namespace}/{name})")
    return name, outcome is Outcome.EXISTS


async def _publish(bootstrap: str, topic: str, key: str, raw: bytes) -> None:
    """Returns when the broker has it on all in-sync replicas. The tenant's topic may have any number of partitions."""
    # The client tells of every try by itself; the caller gets one sentence.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    settings = kafka_as_caller(bootstrap, check_topics=False)
    bus = KafkaBus(settings, [Topic(topic, await _partitions(settings, topic))])
    try:
        await bus.open()
        await bus.publisher().publish([Outgoing(topic, key, raw, EventType.JOB_SUBMIT)])
    except (BusUnavailable, BusMisconfigured) as error:
        raise CommandError(f"{key} was not published: {error}") from None
    finally:
        await bus.close()


async def _partitions(settings: KafkaSettings, topic: str) -> int:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

    admin = AIOKafkaAdminClient(**settings.client())
    try:
        async with asyncio.timeout(settings.request_s):
            await admin.start()
            described = await admin.describe_topics([topic])
    except (KafkaError, TimeoutError, OSError) as error:
        raise CommandError(str(await why_not(settings, error))) from None
    finally:
        await admin.close()
    if any(t["error_code"] == TopicAuthorizationFailedError.errno for t in described):
        raise CommandError(f"Kafka does not let {account(settings)} write the topic {topic}")
    count = sum(len(t["partitions"]) for t in described if not t["error_code"])
    if not count:
        raise CommandError(f"Kafka has no topic {topic}")
    return count


# --- reading ----------------------------------------------------------------------------------------------------------


def _target(job: str, namespace: str, own: str) -> tuple[str, str]:
    """(namespace, name) of NAME or NAMESPACE/NAME; `namespace` was named by an option, `own` is the kubeconfig's."""
    space, slash, name = job.partition("/")
    if not slash:
        space, name = namespace or own, job
    if not space or not name:
        raise CommandError(f"{job!r} is neither NAME nor NAMESPACE/NAME")
    if namespace and namespace != space:
        raise CommandError(f"{job} is not in the namespace {namespace}")
    return space, name


async def _object(kube: Kube, namespace: str, name: str) -> trainingjobs.TrainingJobView | None:
    listed = await writes.list_all(kube, trainingjobs.path(namespace))
    views = [trainingjobs.parse(raw) for raw in listed.items]
    return next((v for v in views if v.name == name), None) or next((v for v in views if v.spec.id == name), None)


async def _groups(kube: Kube, namespace: str, own: str) -> list[Group]:
    """Jobs of one namespace; of all with an empty one, or of the caller's where that is all the caller may see."""
    try:
        return await _read_groups(kube, namespace)
    except ReadFailed as error:
        if namespace or error.answer.status != 403:
            raise
        return await _read_groups(kube, own)


async def _read_groups(kube: Kube, namespace: str) -> list[Group]:
    # In this order: a pod whose job is not in the later list has lost it.
    pods = await writes.list_all(kube, writes.pods_path(namespace), field_selector=_FIELDS)
    jobs = await writes.list_all(kube, trainingjobs.path(namespace))
    return groups_of([trainingjobs.parse(raw) for raw in jobs.items], [pod_decoder.decode(raw) for raw in pods.items])


def _found(groups: list[Group], namespace: str, name: str) -> Group:
    group = find(groups, namespace, name)
    if group is None:
        raise CommandError(f"there is no job, gang or pod of Drystone's named {namespace}/{name}")
    return group
