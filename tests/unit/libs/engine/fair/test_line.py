"""The line over the tree: what stands first, and what follows when it was taken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.queues import Queue, Quota
from libs.engine.fair import Amounts, Line, Shares

GPU = 1000


def told(used: dict[str, int], deserved: dict[str, int], total: int = 8) -> Shares:
    found = Shares(lambda path: (used.get(path, 0) * GPU, 0, 0))
    found.total_seen((total * GPU, 0, 0))
    for path, gpus in deserved.items():
        found.queue_seen(Queue(path, deserved=Quota(gpu_milli=gpus * GPU)))
    return found


def ask(gpus: int) -> Amounts:
    return gpus * GPU, 0, 0


def drained(line: Line[str]) -> list[str]:
    order = []
    while (entry := line.next()) is not None:
        order.append(entry.key)
        line.charge(entry.path, entry.ask)
    return order


def test_queues_take_turns_as_their_shares_say() -> None:
    line: Line[str] = Line(told({}, {"a": 6, "b": 2}))
    for n in range(6):
        line.put(f"a{n}", "a", (n,), ask(1))
        line.put(f"b{n}", "b", (n + 100,), ask(1))
    first = drained(line)[:8]
    assert sorted(first) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1"], (
        "each what it deserves, before anything more"
    )


def test_with_nothing_said_the_older_job_goes_first_whichever_its_queue() -> None:
    line: Line[str] = Line(told({"a": 5}, {}))
    for n, queue in enumerate(["a", "b", "c", "a", "b"]):
        line.put(str(n), queue, (n,), ask(1))
    assert drained(line) == ["0", "1", "2", "3", "4"]


def test_a_queue_stands_by_its_branch_first() -> None:
    shares = told({"lab": 4, "lab/x": 0, "lab/y": 4, "shop": 1}, {"lab": 4, "lab/x": 4, "shop": 4})
    line: Line[str] = Line(shares)
    line.put("x", "lab/x", (0,), ask(1))
    line.put("s", "shop", (9,), ask(1))
    assert drained(line) == ["s", "x"], "the branch of x has all that it deserves"


def test_a_queue_with_jobs_of_its_own_and_queues_below_serves_both() -> None:
    line: Line[str] = Line(told({"lab": 2, "lab/x": 2}, {"lab": 4, "lab/x": 1}))
    line.put("own", "lab", (0,), ask(1))
    line.put("below", "lab/x", (1,), ask(1))
    assert drained(line) == ["own", "below"]


def test_what_changes_is_seen() -> None:
    used = {"a": 0, "b": 1}
    line: Line[str] = Line(told(used, {"a": 2, "b": 2}))
    for queue in "ab":
        line.put(queue, queue, (queue,), ask(1))
    assert (head := line.head()) is not None and head.key == "a"
    used["a"] = 2
    line.touched(["a"])
    assert (head := line.head()) is not None and head.key == "b"
    line.discard("b")
    assert (head := line.head()) is not None and head.key == "a"
    line.put("a", "a", ("z",), ask(2))
    assert (head := line.next()) is not None and head.order == ("z",)
    assert line.next() is None and not len(line)


def test_what_was_taken_counts_until_it_is_settled() -> None:
    line: Line[str] = Line(told({}, {"a": 1, "b": 1}))
    for n in range(4):
        line.put(f"a{n}", "a", (n,), ask(1))
    line.put("b", "b", (9,), ask(1))
    assert [e.key for e in (line.next(),) if e] == ["a0"]
    line.charge("a", ask(1))
    assert (head := line.head()) is not None and head.key == "b"
    line.settle()
    assert (head := line.head()) is not None and head.key == "a1"


entries = st.lists(
    st.tuples(st.sampled_from(["a", "b", "lab/x", "lab/y", "lab"]), st.integers(0, 4), st.integers(0, 50)),
    max_size=20,
    unique_by=lambda e: e[2],
)


@settings(max_examples=60, deadline=None)
@given(rows=entries, used=st.fixed_dictionaries({q: st.integers(0, 6) for q in ("a", "b", "lab", "lab/x", "lab/y")}),
       shuffled=st.randoms(use_true_random=False))  # fmt: skip
def test_the_order_does_not_depend_on_who_lined_up_first_and_no_queue_below_its_share_is_behind_one_above(
    rows: list[tuple[str, int, int]], used: dict[str, int], shuffled: object
) -> None:
    deserved = {"a": 3, "b": 1, "lab": 4, "lab/x": 2, "lab/y": 2}
    shares = told(used, deserved)

    def ordered(these: list[tuple[str, int, int]]) -> list[str]:
        line: Line[str] = Line(shares)
        for queue, gpus, number in these:
            line.put(f"{queue}:{number}", queue, (number,), ask(gpus))
        return drained(line)

    first = ordered(rows)
    other = list(rows)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert ordered(other) == first
    assert len(first) == len(rows)
    tops = [key.split(":")[0].split("/")[0] for key in first]
    sizes = {f"{q}:{n}": g for q, g, n in rows}
    if first:
        top, size = tops[0], sizes[first[0]]
        for queue, gpus, _ in rows:
            other_top = queue.split("/")[0]
            if other_top != top and gpus and size:
                above = used[top] >= deserved[top]
                below = used[other_top] < deserved[other_top]
                assert not (above and below), f"{other_top} waits behind {top}"


def test_nothing_is_kept_of_those_who_left_and_of_what_changed() -> None:
    line: Line[str] = Line(told({}, {"a": 4, "b": 4}))
    line.put("first", "a", (0,), ask(1))
    line.put("stays", "b", (1,), ask(1))
    for n in range(1, 3000):
        line.put(f"j{n}", "b", (n + 1,), ask(1))
        line.discard(f"j{n}")
        line.touched(["b"])
        assert line.head() is not None
    assert len(line._nodes["b"].jobs) < 200 and len(line._root.heap) < 200
