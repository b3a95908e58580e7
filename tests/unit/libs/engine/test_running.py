"""The book of running pods: whatever comes in whatever order, its counts are those of a recount."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.queues import QueueHistory, ancestors
from libs.domain.resources import Charge, GpuGrant
from libs.engine.api import RunningTask
from libs.engine.running import RunningBook

QUEUES = ("a", "a/x", "b")
UIDS = ("u1", "u2", "u3")
pods = st.builds(
    lambda uid, queue, gpus, terminating, marked, node: RunningTask(
        uid, uid, "team", node, "pod/team/" + uid, queue, 0,
        Charge(1000, 10, tuple(GpuGrant(i, 1000, 1) for i in range(gpus))), True,
        terminating=terminating, marked=marked, workload="Job/team/" + queue,
    ),
    st.sampled_from(UIDS), st.sampled_from(QUEUES), st.integers(0, 2), st.booleans(), st.booleans(),
    st.sampled_from(["n1", "n2"]),
)  # fmt: skip
steps = st.lists(
    st.one_of(
        st.tuples(st.just("seen"), pods),
        st.tuples(st.sampled_from(["gone", "mark", "unmark"]), st.sampled_from(UIDS)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_what_leaves_and_what_runs_is_counted_once_in_any_history(history: list[tuple[str, object]]) -> None:
    book = RunningBook()
    for what, which in history:
        if isinstance(which, RunningTask):
            book.seen(which)
        elif what == "gone":
            book.gone(str(which))
        elif what == "mark":
            book.mark(str(which))
        else:
            book.unmark({str(which)})
    there = list(book.by_uid.values())
    for path in QUEUES:
        leaving = [t for t in there if path in ancestors(t.queue) and not book.stays(t)]
        sums = (sum(t.charge.gpu_milli for t in leaving), sum(t.charge.cpu for t in leaving))
        assert book.leaving(path)[:2] == sums
        assert sorted(t.uid for t in book.who_leaves(path)) == sorted(t.uid for t in leaving)
        assert book.by_queue.get(path, 0) == sum(t.queue == path for t in there)
        assert book.by_workload.get("Job/team/" + path, set()) == {t.uid for t in there if t.queue == path}
    for name in ("n1", "n2"):
        assert set(book.by_node.get(name, {})) == {t.uid for t in there if t.node == name}


def victim(uid: str, marked: bool = False, gang_min: int = 1) -> RunningTask:
    return RunningTask(
        uid, uid, "team", "n", "gang/team/g", "a", 0, Charge(), True, gang_min=gang_min, marked=marked, workload="w"
    )


def test_evictions_of_a_gang_that_went_together_count_once_and_those_outside_the_window_not() -> None:
    book = RunningBook()
    book.clock = 10_000.0
    history = QueueHistory("a", 10_000.0, evictions={"w": (1000, 8000, 8010, 8055, 9500)})
    assert book.evictions(victim("u"), history, 5000) == [8000, 8010, 8055, 9500]
    assert book.evictions(victim("u", gang_min=3), history, 5000) == [8000, 9500]


def test_an_eviction_on_its_way_counts_until_the_history_is_newer_than_its_end() -> None:
    book = RunningBook()
    book.clock = 100.0
    book.seen(victim("u", marked=True))
    book.clock = 160.0
    assert book.evictions(victim("new"), QueueHistory("a", 159.0), 3600) == [100.0]
    book.gone("u")
    assert book.evictions(victim("new"), QueueHistory("a", 165.0), 3600) == [100.0]
    told = QueueHistory("a", 180.0, evictions={"w": (101,)})
    assert book.evictions(victim("new"), told, 3600) == [101]


def test_an_eviction_that_the_history_names_counts_once_from_then_on_however_long_the_pod_takes_to_go() -> None:
    book = RunningBook()
    book.clock = 100.0
    book.seen(victim("u", marked=True))
    history = QueueHistory("a", 101.0, evictions={"w": (101,)}, recent=("u",))
    book.told(history.recent)
    assert book.evictions(victim("new"), history, 3600) == [101]
    book.seen(victim("u", marked=True))
    book.mark("u")
    assert book.evictions(victim("new"), history, 3600) == [101], "it is still there"
    book.gone("u")
    assert book.evictions(victim("new"), history, 3600) == [101]


def test_an_eviction_that_the_history_may_have_is_in_doubt_until_it_is_named_or_long_over() -> None:
    book = RunningBook()
    book.clock = 100.0
    book.seen(victim("u", marked=True))
    assert book.in_doubt(victim("new"))
    book.told(["u"])
    assert not book.in_doubt(victim("new"))


def test_marks_within_a_pass_count_and_are_forgotten_with_it() -> None:
    book = RunningBook()
    book.seen(victim("u"))
    book.mark("u")
    assert len(book.evictions(victim("new"), None, 3600)) == 1
    book.unmark({"u"})
    assert book.evictions(victim("new"), None, 3600) == []


def test_room_that_comes_is_shown_to_whom_it_is_promised_until_the_pod_stays_or_is_gone() -> None:
    book = RunningBook()
    for uid in ("u1", "u2"):
        book.seen(victim(uid, marked=True))
        book.comes_free(uid)
    book.promise("u1", "job/a")
    assert [t.uid for t in book.coming("job/a")] == ["u1", "u2"]
    assert [t.uid for t in book.coming("job/b")] == ["u2"]
    book.seen(msgspec.structs.replace(victim("u2"), marked=False))
    assert [t.uid for t in book.coming("job/b")] == []
    book.gone("u1")
    assert book.coming("job/a") == []
