"""Job events as nobody should send them: valid submissions with something wrong in them, and bytes of any kind.

A seeded generator. It knows the shape of a submission, so that most of what it makes gets past the first check and is
wrong further in: one field of another type, a number that is no number, a pod template that asks for the host or for
more than there is anywhere, the namespace of another tenant, an id that was used before, headers that are no
CloudEvents, little that becomes much.
"""

from __future__ import annotations

import base64
import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from bench.oddities import (
    EXTREME_ANNOTATIONS,
    NUMBERS,
    ODD,
    OF_OTHERS,
    TYPES,
    UNKNOWN,
    extreme_fields,
    hostile_fields,
    pod_spec,
    refused_fields,
)
from libs.contracts.events import EventType
from libs.domain import keys

#: The largest that the topic takes is 1 MiB, envelope included.
MOST_SENT: Final = 1_000_000

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Hostile:
    """One record. `id` is its CloudEvents id, also where the record does not say it in a way that can be read."""

    id: str
    kind: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int


def headers_of(id: str, type: str = EventType.JOB_SUBMIT) -> Headers:
    """CloudEvents binary mode, as it should be."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_type", type.encode()),
        ("ce_id", id.encode()),
        ("ce_source", b"fuzz"),
        ("content-type", b"application/json"),
    ]


class Generator:
    """The same seed makes the same events. Ids of events and jobs begin with `name`."""

    def __init__(self, name: str, seed: int, partitions: int) -> None:
        self._name = name
        self._rng = random.Random(seed)
        self._partitions = partitions
        self._number = 0
        #: Bodies of good jobs that were sent, by job id, with their partition.
        self._sent: list[tuple[str, dict[str, Any], int]] = []

    def next(self) -> Hostile:
        self._number += 1
        kind, make = self._rng.choices(_KINDS, weights=_WEIGHTS)[0]
        return make(self, f"{self._name}-{self._number}", kind)

    # -- what a careful user sends ------------------------------------------------------------------------------------

    def good(self, id: str, kind: str = "good") -> Hostile:
        body = self._job(id)
        event = self._event(id, kind, body, job=id)
        self._sent.append((id, body, event.partition))
        return event

    def again(self, id: str, kind: str) -> Hostile:
        """An earlier job once more: the same."""
        if not self._sent:
            return self.good(id)
        job, body, partition = self._rng.choice(self._sent)
        shuffled = dict(self._rng.sample(sorted(body.items()), len(body)))
        return self._event(id, kind, shuffled, job=job, partition=partition)

    def reused(self, id: str, kind: str) -> Hostile:
        """The id of an earlier job for another one."""
        if not self._sent:
            return self.good(id)
        job, body, partition = self._rng.choice(self._sent)
        other = {**copy.deepcopy(body), "priority": self._rng.choice(("low", "high")), "backoffLimit": 7}
        return self._event(id, kind, other, job=job, partition=partition)

    def cancel(self, id: str, kind: str) -> Hostile:
        """Of a job that was sent, or of none."""
        job, partition = f"{self._name}-unknown-{self._rng.randint(0, 99)}", None
        if self._sent and self._rng.random() < 0.6:
            job, _, partition = self._rng.choice(self._sent)
        body: dict[str, Any] = {"id": job}
        if self._rng.random() < 0.3:
            body[self._rng.choice(("namespace", "why", "id"))] = self._odd()
        return self._event(id, kind, body, job=job, partition=partition, type=EventType.JOB_CANCEL)

    # -- something wrong within ---------------------------------------------------------------------------------------

    def field(self, id: str, kind: str) -> Hostile:
        """One to three fields, wherever they are, replaced, left out or added."""
        body = self._job(id)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            where, name = self._rng.choice(list(_places(body)))
            match self._rng.randrange(4):
                case 0:
                    _put(where, name, self._odd())
                case 1:
                    _put(where, name, self._nested(3))
                case 2:
                    del where[name]
                case _ if isinstance(where, dict):
                    where[self._rng.choice(UNKNOWN)] = self._odd()
                case _:
                    where.append(self._odd())
            if not body:
                break
        return self._event(id, kind, body)

    def number(self, id: str, kind: str) -> Hostile:
        body = self._job(id)
        role = self._rng.choice(body["roles"])
        where, name = self._rng.choice(
            [(role, "replicas"), (role, "min"), (body, "gangMin"), (body, "backoffLimit"),
             (body, "ttlSecondsAfterFinished"), (role["template"].get("resources", role), "gpu")]
        )  # fmt: skip
        where[name] = "@"
        said = json.dumps(body).replace('"@"', self._rng.choice(NUMBERS))
        return self._event(id, kind, said.encode())

    def huge(self, id: str, kind: str) -> Hostile:
        """Gangs that no cluster has room for, and more tasks than anybody may have."""
        body = self._job(id)
        size = self._rng.choice((1_000, 9_999, 10_000, 10_001, 100_000, 100_001, 10**9))
        body["roles"] = body["roles"][:1]
        body["roles"][0] |= {"replicas": size, "min": size}
        return self._event(id, kind, body)

    def template(self, id: str, kind: str) -> Hostile:
        body = self._job(id)
        spec = pod_spec()
        where, name, value = self._rng.choice(hostile_fields(spec))
        where[name] = value if self._rng.random() < 0.8 else self._nested(2)
        body["roles"][0]["template"] = {"spec": spec}
        if self._rng.random() < 0.2:
            body["roles"][0]["template"]["metadata"] = {
                self._rng.choice(("annotations", "labels", "name", "finalizers", "ownerReferences")): self._rng.choice(
                    ({keys.GPUS: "0,1"}, {keys.JOB: "other"}, {keys.QUEUE: "theirs"}, {"a": 1}, {"": ""}, [], "x")
                )
            }
        return self._event(id, kind, body)

    def extreme(self, id: str, kind: str) -> Hostile:
        """Amounts, numbers and texts that can be read, and are as large as nothing real is."""
        rng, body, spec = self._rng, self._job(id), pod_spec()
        template: dict[str, Any] = {"spec": spec}
        for where, name, value in rng.sample(extreme_fields(spec), rng.choice((1, 1, 2))):
            where[name] = value
        if rng.random() < 0.3:
            template["metadata"] = {"annotations": dict(rng.choice(EXTREME_ANNOTATIONS))}
        body["roles"][0]["template"] = template
        return self._event(id, kind, body)

    def elsewhere(self, id: str, kind: str) -> Hostile:
        """What belongs to others: namespaces, queues, priorities."""
        body = self._job(id)
        name, values = self._rng.choice(OF_OTHERS)
        body[name] = self._rng.choice(values)
        return self._event(id, kind, body)

    # -- little that becomes much -------------------------------------------------------------------------------------

    def huge_key(self, id: str, kind: str) -> Hostile:
        """As text a byte that is no UTF-8 is four characters, as JSON a control character is six."""
        event = self._event(id, kind, self._rng.choice((self._job(id), b"rubbish")))
        size = self._rng.choice((2_000, 100_000, 900_000))
        key = self._rng.choice((b"\xff", b"\x00", "\N{SNOWMAN}".encode())) * size
        return replace(event, key=key[: MOST_SENT - len(event.value or b"") - 2_000])

    def wide(self, id: str, kind: str) -> Hostile:
        """Labels that each of very many tasks would carry."""
        body = self._job(id)
        labels = {f"team.example.com/label-{n}": "v" * 50 for n in range(self._rng.choice((60, 600)))}
        replicas = self._rng.choice((100, 1_000, 10_000))
        template = {"metadata": {"labels": labels}, "spec": pod_spec()}
        body["roles"] = [{"name": "worker", "replicas": replicas, "template": template}]
        return self._event(id, kind, body)

    def grows(self, id: str, kind: str) -> Hostile:
        """What the API server writes out: four bytes become sixteen, one becomes six."""
        body, spec = self._job(id), pod_spec()
        count = self._rng.choice((1_000, 60_000, 100_000))
        said = self._rng.choice((b"[" + b"1e15," * count + b"1]", b'"' + b"<" * 4 * count + b'"'))
        spec[self._rng.choice(("x", "overhead", "nodeSelector"))] = "@"
        body["roles"][0]["template"] = {"spec": spec}
        return self._event(id, kind, json.dumps(body).encode().replace(b'"@"', said))

    def refused(self, id: str, kind: str) -> Hostile:
        """A good job as far as it is a job, whose pods the API server will not have."""
        body, spec = self._job(id), pod_spec()
        where, name, value = self._rng.choice(refused_fields(spec))
        where[name] = value
        body["roles"][0]["template"] = {"spec": spec}
        return self._event(id, kind, body)

    # -- envelopes ----------------------------------------------------------------------------------------------------

    def headers(self, id: str, kind: str) -> Hostile:
        body = self._job(id)
        said = headers_of(id)
        at = self._rng.randrange(4)
        name, value = said[at]
        wrong: Callable[[], Headers] = self._rng.choice(
            (
                list,
                lambda: said[:at] + said[at + 1 :],
                lambda: [*said[:at], (name, b""), *said[at + 1 :]],
                lambda: [*said[:at], (name, b"\xff\xfe"), *said[at + 1 :]],
                lambda: [*said[:at], (name, b"x" * 9_000), *said[at + 1 :]],
                lambda: [*said, (name, value[::-1])],
                lambda: [*said, *[(f"ce_x{n}", b"y") for n in range(100)]],
                lambda: [*said, ("traceparent", b"00-zz"), ("ce_traceparent", b"\x00")],
                lambda: [("ce_specversion", b"0.3"), *said[1:]],
                lambda: [(n.upper(), v) for n, v in said],
                lambda: headers_of(id, self._rng.choice(TYPES)),
                lambda: [*said[:-1], ("content-type", b"application/cloudevents-batch+json")],
                lambda: [*said[:-1], ("content-type", b"text/plain; charset=latin-1")],
            )
        )
        return self._event(id, kind, body, headers=wrong())

    def structured(self, id: str, kind: str) -> Hostile:
        """The whole event in one JSON object; half of them with something wrong in it."""
        event: dict[str, Any] = {
            "specversion": "1.0", "id": id, "source": "fuzz", "type": EventType.JOB_SUBMIT, "data": self._job(id),
        }  # fmt: skip
        if self._rng.random() < 0.5:
            name = self._rng.choice((*event, "data_base64", "datacontenttype", "extension", "Big"))
            # Another id that can be read would be another event: its answer could not be told from others'.
            event[name] = self._odd() if name != "id" else self._rng.choice((None, 1, "", [], {}))
        elif self._rng.random() < 0.3:
            event["data_base64"] = base64.b64encode(json.dumps(event.pop("data")).encode()).decode()
        return self._event(id, kind, event, headers=[("content-type", b"application/cloudevents+json")])

    # -- bytes --------------------------------------------------------------------------------------------------------

    def raw(self, id: str, kind: str) -> Hostile:
        rng, good = self._rng, json.dumps(self._job(id)).encode()
        make: Callable[[], bytes | None] = rng.choice(
            (
                lambda: rng.randbytes(rng.randrange(1, 400)),
                lambda: good[: rng.randrange(len(good))],
                lambda: good + good,
                lambda: _flipped(rng, good),
                lambda: _flipped(rng, good),
                lambda: b"[" * rng.choice((33, 5_000, 200_000)),
                lambda: b'{"id":' * rng.choice((33, 5_000, 100_000)) + b"1" + b"}" * 33,
                lambda: good.replace(b'"image"', b'"im\xffage"'),
                lambda: b"\xef\xbb\xbf" + good,
                lambda: good.decode().encode("utf-16"),
                lambda: b'{"id":"%s","id":"x","roles":[]}' % id.encode(),
                lambda: b'{"id":"\\ud800","roles":[]}',
                lambda: good.replace(b"train", b"\\u0000" * rng.choice((1, 1000))),
                lambda: good[:-1] + b',"x":"' + b"y" * rng.choice((500_000, MOST_SENT - 20_000)) + b'"}',
                lambda: b" " * rng.choice((10, 600_000)),
                lambda: rng.choice((b"null", b"[]", b"1e999", b'"a"', b"{}", b"true", b"", b"\x00")),
                lambda: None,
            )
        )
        return self._event(id, kind, make(), type=rng.choice((EventType.JOB_SUBMIT, EventType.JOB_CANCEL)))

    # -- parts --------------------------------------------------------------------------------------------------------

    def _event(
        self,
        id: str,
        kind: str,
        body: Any,
        *,
        job: str = "",
        partition: int | None = None,
        type: str = EventType.JOB_SUBMIT,
        headers: Headers | None = None,
    ) -> Hostile:
        rng = self._rng
        value = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        key = job.encode() or rng.choice((id.encode(), None, b"", b"\xff\xfe", b"k" * 1_000, b"same"))
        if value is None and key is None:
            key = b""  # the client sends no record without both
        if partition is None:
            partition = rng.randrange(self._partitions)
        return Hostile(id, kind, key, value, headers_of(id, type) if headers is None else headers, partition)

    def _job(self, id: str) -> dict[str, Any]:
        """A valid submission of a few small tasks."""
        rng = self._rng
        role: dict[str, Any] = {
            "name": "worker",
            "replicas": rng.choice((1, 1, 1, 2, 4)),
            "template": {
                "image": "train:1",
                "command": ["run"],
                "env": {"STEP": "1"},
                "resources": {"cpu": "1", "memory": "1Gi", "gpu": rng.choice((0, 1, 1, ".5", {"memory": "8Gi"}))},
            },
        }
        if rng.random() < 0.3:
            role["template"] = {"metadata": {"labels": {"app": "train"}}, "spec": pod_spec()}
        body: dict[str, Any] = {"id": id, "roles": [role]}
        more = {"namespace": "default", "priority": "normal", "backoffLimit": 1, "gangMin": 1}
        return {**body, **{name: value for name, value in more.items() if rng.random() < 0.4}}

    def _odd(self) -> Any:
        return copy.deepcopy(self._rng.choice(ODD))

    def _nested(self, depth: int) -> Any:
        if depth == 0 or self._rng.random() < 0.3:
            return self._odd()
        size = self._rng.randrange(4)
        if self._rng.random() < 0.5:
            return [self._nested(depth - 1) for _ in range(size)]
        return {self._rng.choice(UNKNOWN): self._nested(depth - 1) for _ in range(size)}


def _flipped(rng: random.Random, good: bytes) -> bytes:
    """A few bytes changed, wherever."""
    changed = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value, outermost first."""
    found: list[tuple[Any, Any]] = []
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for name, item in inner:
        found.append((value, name))
        if isinstance(item, dict | list):
            found += _places(item)
    return found


def _put(where: Any, name: Any, value: Any) -> None:
    where[name] = value


_Make = Callable[[Generator, str, str], Hostile]
_TABLE: Final[tuple[tuple[str, _Make, int], ...]] = (
    ("good", Generator.good, 18),
    ("the same again", Generator.again, 10),
    ("id of another job", Generator.reused, 6),
    ("cancel", Generator.cancel, 10),
    ("field", Generator.field, 17),
    ("number", Generator.number, 7),
    ("huge gang", Generator.huge, 1),
    ("pod template", Generator.template, 12),
    ("huge key", Generator.huge_key, 1),
    ("wide labels", Generator.wide, 1),
    ("grows", Generator.grows, 1),
    ("refused by the server", Generator.refused, 3),
    ("extreme", Generator.extreme, 8),
    ("of others", Generator.elsewhere, 5),
    ("headers", Generator.headers, 6),
    ("structured", Generator.structured, 3),
    ("bytes", Generator.raw, 15),
)
_KINDS: Final = [(kind, make) for kind, make, _ in _TABLE]
_WEIGHTS: Final = [weight for _, _, weight in _TABLE]
