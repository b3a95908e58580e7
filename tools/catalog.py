"""The catalogue of events: AsyncAPI 3 and JSON Schemas, generated from `libs/contracts`.

`python -m tools.catalog` writes `docs/asyncapi.yaml`, `docs/schemas/` and the tables of settings (`docs/settings.md`)
and metrics (`docs/metrics.md`); with `--check` it writes nothing and ends with 1 when what is there is not what it
would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pydantic import BaseModel

from libs.contracts import events, topics
from libs.contracts.access import SERVICES
from libs.contracts.events import EventType
from libs.contracts.submission import MOST_BYTES, CancelJob, SubmitJob
from libs.contracts.templates import ShortTemplate
from libs.contracts.topics import Topic
from tools import metrics, settings

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of record. `key` says what the record's key is; `tombstone`: a record without a value means gone."""

    name: str
    type: str
    payload: Any
    topic: Topic
    key: str
    summary: str
    tombstone: bool = False


EVENTS: Final = (
    Event("job-submit", EventType.JOB_SUBMIT, SubmitJob, topics.JOBS, "the job's id", "Run this job."),
    Event("job-cancel", EventType.JOB_CANCEL, CancelJob, topics.JOBS, "the job's id", "Cancel this job."),
    Event("tasks", EventType.TASKS, events.TasksBatch, topics.TASKS, "job key", "Hints: jobs that changed."),
    Event(
        "cluster", EventType.CLUSTER, events.ClusterFact, topics.CLUSTER, "kind/name",
        "What the cluster holds: nodes, bound pods, priority classes, disruption budgets, queues.", tombstone=True,
    ),
    Event(
        "gpus", EventType.GPUS, events.GpuFacts, topics.GPUS, "the node's name", "Devices of a node as measured.",
        tombstone=True,
    ),
    Event(
        "mix", EventType.MIX, events.LearnedMix, topics.MIX, "number of the partition of jobs",
        "Which sizes of tasks come, as learned from the jobs of one partition.",
    ),
    Event("plans", EventType.PLANS, events.PlansBatch, topics.PLANS, "job key", "Decisions, claimed in the ledger."),
    Event(
        "evictions", EventType.EVICTIONS, events.EvictionsBatch, topics.EVICTIONS, "job key of the beneficiary",
        "Victims that shall make room.",
    ),
    Event("outcomes", EventType.OUTCOMES, events.OutcomesBatch, topics.OUTCOMES, "job key", "What became of plans."),
    Event("job-status", EventType.STATUS, events.JobStatus, topics.STATUS, "job key", "Where a job stands, and why."),
    Event(
        "dead-letter", EventType.DEAD_LETTER, events.DeadLetter, topics.DEAD_LETTERS, "the message's own key",
        "A message that cannot be served.",
    ),
)  # fmt: skip


def schema(event: Event) -> dict[str, Any]:
    """The payload as a JSON Schema of its own; types that it uses are under `$defs`."""
    if isinstance(event.payload, type) and issubclass(event.payload, BaseModel):
        body = event.payload.model_json_schema()
        if event.payload is SubmitJob:
            body = _with_templates(body)
    else:
        body = msgspec.json.schema(event.payload)
    return {"$schema": _DRAFT, "$id": f"urn:{event.type}", "title": event.type, **_without(body, "title")}


def _with_templates(body: dict[str, Any]) -> dict[str, Any]:
    """A role's template is either the short form or a whole PodTemplateSpec; the code tells them apart by `spec`."""
    short = ShortTemplate.model_json_schema()
    definitions = {**body["$defs"], **short.pop("$defs", {}), "ShortTemplate": short}
    role = definitions["SubmitRole"]
    long = {
        "type": "object",
        "description": "A PodTemplateSpec, held to the tenant's Pod Security profile.",
        "required": ["spec"],
        "properties": {"metadata": {"type": "object"}, "spec": {"type": "object"}},
    }
    template = {"anyOf": [{"$ref": "#/$defs/ShortTemplate"}, {"$ref": "#/$defs/PodTemplate"}]}
    definitions["SubmitRole"] = {**role, "properties": {**role["properties"], "template": template}}
    return {**body, "$defs": {**definitions, "PodTemplate": long}}


def _without(body: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != key}


def asyncapi() -> dict[str, Any]:
    """The document as plain data."""
    channels = {_short(topic): _channel(topic) for topic in topics.ALL}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Drystone events",
            "version": "1.0.0",
            "description": (
                "CloudEvents 1.0 over Kafka in binary mode. Delivery is at least once and every effect is idempotent. "
                "`drystone.jobs` (or a topic per tenant) and `drystone.status` are for other systems; the rest is "
                "between Drystone's services. Fields are added with defaults only; readers ignore those they do not "
                "know, except in what is submitted."
            ),
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": dict(_operations()),
        "components": {
            "messages": {event.name: _message(event) for event in EVENTS},
            "messageTraits": {"cloudevent": _TRAIT},
        },
    }


_TRAIT: Final = {
    "contentType": "application/json",
    "headers": {
        "type": "object",
        "required": ["ce_specversion", "ce_id", "ce_source", "ce_type"],
        "properties": {
            "ce_specversion": {"const": "1.0"},
            "ce_id": {"type": "string", "description": "Unique with ce_source."},
            "ce_source": {"type": "string", "description": "Who wrote it: drystone/<service>/<replica>, or yours."},
            "ce_type": {"type": "string"},
            "ce_cause": {"type": "string", "description": "Id of the first event of the chain."},
            "traceparent": {"type": "string", "description": "W3C trace context."},
        },
    },
}


def _short(topic: Topic) -> str:
    return topic.name.removeprefix("drystone.")


def _channel(topic: Topic) -> dict[str, Any]:
    settings = topic.config(1)
    configuration: dict[str, Any] = {
        "cleanup.policy": [settings["cleanup.policy"]],
        "max.message.bytes": topic.max_message_bytes,
    }
    if "retention.ms" in settings:
        configuration["retention.ms"] = topic.retention_ms
    carried = [event for event in EVENTS if event.topic is topic]
    more = "A tenant may have a topic of its own of the same shape." if topic is topics.JOBS else ""
    return {
        "address": topic.name,
        **({"description": more} if more else {}),
        "messages": {event.name: {"$ref": f"#/components/messages/{event.name}"} for event in carried},
        "bindings": {
            "kafka": {"bindingVersion": "0.5.0", "partitions": topic.partitions, "topicConfiguration": configuration}
        },
    }


def _operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for service, access in SERVICES.items():
        for action, used in (("receive", access.reads), ("send", access.writes)):
            for topic in used:
                operation: dict[str, Any] = {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{_short(topic)}"},
                    "summary": f"{service} {'reads' if action == 'receive' else 'writes'} {topic.name}",
                }
                if action == "receive" and access.group and topic is access.reads[0]:
                    group = {"type": "string", "enum": [access.group]}
                    operation["bindings"] = {"kafka": {"bindingVersion": "0.5.0", "groupId": group}}
                yield f"{service}.{action}.{_short(topic)}", operation


def _message(event: Event) -> dict[str, Any]:
    description = _documentation(event.payload)
    if event.tombstone:
        description += " A record without a value under a key says that the thing is gone."
    if event.topic is topics.JOBS:
        description += f" At most {MOST_BYTES} bytes."
    return {
        "name": event.type,
        "title": event.name,
        "summary": event.summary,
        **({"description": description.strip()} if description.strip() else {}),
        "traits": [{"$ref": "#/components/messageTraits/cloudevent"}],
        "payload": {"$ref": f"./schemas/{event.name}.json"},
        "bindings": {"kafka": {"bindingVersion": "0.5.0", "key": {"type": "string", "description": event.key}}},
    }


def _documentation(payload: Any) -> str:
    text = (getattr(payload, "__doc__", None) or "") if isinstance(payload, type) else ""
    text = "" if text.startswith(f"{getattr(payload, '__name__', '')}(") else text
    return re.sub(r"\s+", " ", text).strip()


def files() -> dict[str, str]:
    """Name below `docs/` -> text."""
    note = "# Generated by `python -m tools.catalog`: change libs/contracts, then run it.\n"
    rendered = {"asyncapi.yaml": note + yaml.safe_dump(asyncapi(), sort_keys=False, width=110, allow_unicode=True)}
    for event in EVENTS:
        rendered[f"schemas/{event.name}.json"] = json.dumps(schema(event), indent=2, ensure_ascii=False) + "\n"
    rendered["settings.md"] = settings.render()
    rendered["metrics.md"] = metrics.render()
    return rendered


def stale(docs: Path = DOCS) -> list[str]:
    """Names of files that differ from what would be written, or that nothing would write."""
    wanted = files()
    there = {f"schemas/{path.name}" for path in (docs / "schemas").glob("*.json")}
    differing = [n for n, text in wanted.items() if not (docs / n).is_file() or (docs / n).read_text() != text]
    return sorted([*differing, *(there - wanted.keys())])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.catalog", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is stale")
    checking = parser.parse_args(arguments).check
    found = stale()
    if checking:
        sys.stdout.write("".join(f"stale: docs/{name}\n" for name in found) or "the catalogue is as the code\n")
        return 1 if found else 0
    wanted = files()
    (DOCS / "schemas").mkdir(exist_ok=True)
    for name in found:
        if name in wanted:
            (DOCS / name).write_text(wanted[name], encoding="utf-8")
        else:
            (DOCS / name).unlink()
        sys.stdout.write(f"docs/{name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
