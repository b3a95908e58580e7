"""What is proven of waiting, played on: whoever was said to have room by what others give back has it in time, as long
as that stays proven."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.domain.queues import Queue, Quota
from libs.domain.resources import WHOLE
from tests.property.room_play import START, Play, Workload

GPUS = 12
STEP = 20.0
PATHS = ["a", "b", "c", "guests"]


@st.composite
def plays(draw: st.DrawFn) -> Play:
    shares = draw(st.sampled_from([(4, 4, 4, None), (6, 3, 0, None), (2, 2, 8, 0), (5, 5, 2, 0)]))
    limits = {"evictions": draw(st.sampled_from([1, 3, 1000])), "min_run_s": draw(st.sampled_from([0, 0, 50]))}
    queues = [
        Queue(path, deserved=Quota() if share is None else Quota(gpu_milli=share * WHOLE), **limits)
        for path, share in zip(PATHS, shares, strict=True)
    ]
    play = Play({"n1": GPUS // 2, "n2": GPUS // 2}, queues, grace_s=draw(st.sampled_from([0.0, 15.0])))
    free = [(name, index) for name in play.nodes for index in range(GPUS // 2)]
    number = 0
    while free:
        number += 1
        where = free[0][0]
        size = min(draw(st.sampled_from([1, 1, 2, 3])), sum(name == where for name, _ in free))
        indices, free = tuple(index for _, index in free[:size]), free[size:]
        runs_s = draw(st.sampled_from([0.0, 0.0, 100.0]))
        workload = Workload(f"run{number}", draw(st.sampled_from(PATHS)), size, runs_s=runs_s)
        play.runs(workload, START - draw(st.sampled_from([5.0, 5000.0])), [(where, indices)])
    return play


def within(play: Play, path: str) -> bool:
    """Whether the queue asks for no more than it deserves."""
    deserved = next(queue for queue in play.queues if queue.path == path).deserved.gpu_milli
    waits = sum(
        play.workloads[key].gpus * len(tasks) * WHOLE
        for key, tasks in play.pending.items()
        if play.workloads[key].queue == path
    )
    return deserved is not None and play.used(path) + waits <= deserved


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plays(),
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(PATHS), st.sampled_from([1, 1, 2, 3]), st.sampled_from([1, 1, 2])), max_size=3
        ),
        min_size=4,
        max_size=8,
    ),
)
def test_whoever_was_said_to_have_room_has_it_in_time_while_its_queue_asks_for_no_more_than_its_share(
    play: Play, comes: list[list[tuple[str, int, int]]]
) -> None:
    #: By job: until when it starts, and who stood before it.
    said: dict[str, tuple[float, set[str]]] = {}
    number = 0
    for made in [*comes, [], [], [], []]:
        for path, gpus, tasks in made:
            number += 1
            play.submit(Workload(f"new{number}", path, gpus, tasks))
        play._tell()
        for path in PATHS:
            line = in_line(play, path)
            if not within(play, path):
                continue
            for count in range(1, len(line) + 1):
                if not proven(play, path, line[count - 1]):
                    break
                said.setdefault(line[count - 1], (play.now + count * (play.grace_s + 2 * STEP), set(line[:count])))
        play.step(STEP)
        for key in list(said):
            until, before = said[key]
            path = play.workloads[key].queue
            line = in_line(play, path)
            if key not in line:
                del said[key]  # it runs, or others leave for it
            elif not within(play, path) or not before.issuperset(line[: line.index(key)]):
                del said[key]  # what was said holds no more
            else:
                assert play.now <= until or not proven(play, path, key), (key, until - play.now)


def in_line(play: Play, path: str) -> list[str]:
    waiting = (key for key in play.pending if play.workloads[key].queue == path and key not in play.awaited)
    return sorted(waiting, key=lambda key: (play.created[key], key))


def proven(play: Play, path: str, key: str) -> bool:
    """Whether the job, and all before it in its queue, find what others have to give back as things stand."""
    line = in_line(play, path)
    return not play.engine.owed([play._pending(one) for one in line[: line.index(key) + 1]], play.now)
