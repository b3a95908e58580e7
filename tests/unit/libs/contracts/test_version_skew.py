"""Releases side by side: during an upgrade each reads what the release before and the release after it have written.

What the release before did not know yet is missing from its messages; what the release after has added is unknown here.
Every payload is built from its type, so that a new event, or a new field, is held to this as soon as it is there.
"""

from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect

from libs.store.port import Committed, Holder
from tools.catalog import EVENTS

INTERNAL: Final = {
    event.name: event.payload for event in EVENTS if not event.name.startswith(("job-submit", "job-cancel"))
}


class Build:
    """A payload as JSON from its type. `added`: with fields, and elements of arrays, that nobody here knows; `bare`:
    without any field that may be missing."""

    def __init__(self, *, added: bool = False, bare: bool = False) -> None:
        self.added = added
        self.bare = bare

    def of(self, kind: inspect.Type) -> Any:
        match kind:
            case inspect.Metadata(type=inner):
                return self.of(inner)
            case inspect.StructType():
                return self._struct(kind)
            case inspect.UnionType():
                return self.of(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
            case inspect.VarTupleType() | inspect.ListType():
                return [self.of(kind.item_type)]
            case inspect.TupleType():
                return [self.of(t) for t in kind.item_types]
            case inspect.DictType():
                return {self.of(kind.key_type): self.of(kind.value_type)}
            case inspect.FrozenSetType() | inspect.SetType():
                return [self.of(kind.item_type)]
            case inspect.EnumType():
                return next(iter(kind.cls)).value
            case inspect.LiteralType():
                return kind.values[0]
            case inspect.StrType():
                return "text"
            case inspect.BoolType():
                return True
            case inspect.IntType():
                return 7
            case inspect.FloatType():
                return 7.5
            case _:
                raise NotImplementedError(kind)

    def _struct(self, kind: inspect.StructType) -> Any:
        if kind.array_like:
            return [*(self.of(field.type) for field in kind.fields), *([{"new": 1}] if self.added else ())]
        built = {field.encode_name: self.of(field.type) for field in kind.fields if field.required or not self.bare}
        if kind.tag_field is not None:
            built[kind.tag_field] = kind.tag
        if self.added:
            built["added_by_the_next_release"] = {"deep": [1, {"er": None}]}
        return built


def variants(payload: Any) -> list[inspect.Type]:
    kind = inspect.type_info(payload)
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def structs(payload: Any) -> dict[str, inspect.StructType]:
    """Every struct that a payload may hold, by name."""
    found: dict[str, inspect.StructType] = {}

    def walk(kind: Any) -> None:
        match kind:
            case inspect.StructType():
                if kind.cls.__name__ not in found:
                    found[kind.cls.__name__] = kind
                    for field in kind.fields:
                        walk(field.type)
            case inspect.UnionType() | inspect.TupleType():
                for one in kind.types if isinstance(kind, inspect.UnionType) else kind.item_types:
                    walk(one)
            case inspect.VarTupleType() | inspect.ListType() | inspect.SetType() | inspect.FrozenSetType():
                walk(kind.item_type)
            case inspect.DictType():
                walk(kind.value_type)

    walk(inspect.type_info(payload))
    return found


CASES: Final = [
    pytest.param(payload, kind, id=f"{name}-{getattr(kind, 'tag', None) or n}")
    for name, payload in {**INTERNAL, "committed": Committed, "holder": Holder}.items()
    for n, kind in enumerate(variants(payload))
]


@pytest.mark.parametrize(("payload", "kind"), CASES)
def test_what_the_next_release_adds_is_passed_over(payload: Any, kind: inspect.Type):
    decode = msgspec.json.Decoder(payload).decode
    ours = msgspec.json.encode(Build().of(kind))
    theirs = msgspec.json.encode(Build(added=True).of(kind))
    assert len(theirs) > len(ours)
    assert decode(theirs) == decode(ours)


@pytest.mark.parametrize(("payload", "kind"), CASES)
def test_what_the_last_release_did_not_know_has_a_default(payload: Any, kind: inspect.Type):
    decode = msgspec.json.Decoder(payload).decode
    bare = decode(msgspec.json.encode(Build(bare=True).of(kind)))
    assert decode(msgspec.json.encode(bare)) == bare, "and is told on"


#: What is always said. To ask for more breaks readers of older messages, to say less breaks older readers: either is
#: another `type`, both spoken for a while. Structs that are new are written down here with the release that has them.
REQUIRED: Final = {
    "Assignment": "claim task name node node_spec charge",
    "AttachFact": "node",
    "Charge": "",
    "Claim": "namespace name",
    "ClaimFact": "claim",
    "Committed": "plan",
    "DeadLetter": "reason topic partition offset",
    "EvictionOutcome": "plan job partition",
    "EvictionPlan": "id job job_uid namespace queue partition epoch generation priority victims assignments",
    "EvictionsBatch": "items",
    "Gpu": "index mib",
    "GpuFact": "index",
    "GpuFacts": "node gpus",
    "GpuGrant": "index milli mib",
    "GpuRequest": "",
    "HistoryFact": "history",
    "Holder": "id state node charge",
    "HostPort": "port",
    "JobChanged": "head",
    "JobHead": "key tenant namespace",
    "JobStatus": "id job tenant namespace phase",
    "NamespaceFact": "name version",
    "Near": "",
    "Node": "name uid version spec",
    "NodeFact": "node",
    "NodeTerm": "",
    "NodeUse": "node revision",
    "OutcomesBatch": "items",
    "PdbFact": "name namespace uid version",
    "Plan": "id job job_uid namespace queue partition epoch generation gang assignments",
    "PlanOutcome": "plan job partition tasks",
    "PlansBatch": "items",
    "PodFact": "uid name namespace version node charge",
    "PodTerm": "topology",
    "PriorityClassFact": "name value version",
    "Queue": "path",
    "QueueFact": "queue",
    "QueueHistory": "path",
    "QueueUse": "path revision",
    "Quota": "",
    "Request": "",
    "Requirement": "key operator",
    "Rules": "",
    "Spread": "topology skew",
    "Taint": "key value effect",
    "Task": "id name namespace",
    "TaskOutcome": "task landed",
    "TasksBatch": "items",
    "Toleration": "key operator value effect",
    "Topology": "",
    "Verdict": "kind",
    "Victim": "uid name namespace node job priority",
    "Weights": "",
    "Wishes": "",
}


def test_what_must_be_said_stays_the_same():
    found: dict[str, str] = {}
    for payload in (*INTERNAL.values(), Committed, Holder):
        for name, kind in structs(payload).items():
            found[name] = " ".join(field.name for field in kind.fields if field.required)
    assert {name: fields for name, fields in found.items() if name in REQUIRED} == REQUIRED
