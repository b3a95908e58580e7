"""One object that cannot be read, or on which we fail, hides no other."""

from __future__ import annotations

import msgspec
import structlog
from prometheus_client import Counter

from libs.kube.pods import parse_pod
from libs.observe.faults import Faults
from libs.testkit.builders import cluster, pod
from services.placement.guard import GuardedEngine
from services.placement.truth import read_each
from tests.unit.libs.kube.objects_for_tests import raw_pod

COUNTER = Counter("faults_of_this_test", "In no registry.", ("what",), registry=None)


def test_a_list_is_read_without_the_object_that_cannot_be() -> None:
    deep = raw_pod("deep")[:-1] + b',"zz":' + b"[" * 9_000 + b"]" * 9_000 + b"}"
    no_pod = b'{"metadata":{"name":7}}'
    found = list(read_each(parse_pod, (raw_pod("a"), deep, no_pod, raw_pod("b"))))
    assert [one.name for one in found] == ["a", "b"]


def test_the_log_has_the_traceback_once_and_each_fault_counts() -> None:
    faults = Faults(COUNTER)
    with structlog.testing.capture_logs() as lines:
        for n in range(3):
            try:
                msgspec.json.decode(b"[")
            except msgspec.MsgspecError as error:
                faults.seen("object", f"team/p{n}", error)
    assert [line["exc_info"] is not None for line in lines] == [True, False, False]
    assert [line["of"] for line in lines] == ["team/p0", "team/p1", "team/p2"]
    assert COUNTER.labels("object")._value.get() == 3


def test_questions_beside_decisions_have_no_answer_where_the_engine_fails() -> None:
    engine = cluster().rack("r", nodes=1).into(GuardedEngine())
    whole = pod("p", gpus=1)
    broken = msgspec.structs.replace(whole, tasks=(None,))
    assert engine.helps(broken, 1.0) == ()
    assert engine.reserve(broken, 1.0) is None
    assert engine.backfill(broken, ["x"], 1.0) == ()
    assert engine.borrows(broken, 1.0) is None
    assert engine.owed([broken], 1.0) == "it cannot be worked out"
    (decision,) = engine.decide([whole], 1.0)
    assert decision.placements
