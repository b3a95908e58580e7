"""Queue objects read into a tree: where each stands, what it may hold, and what its owner is told."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.domain.queues import Quota, Weights, half_lives
from libs.kube import queues
from libs.kube.objects import QueueSpec, queue_decoder


def spec(**said: Any) -> tuple[QueueSpec, str]:
    seen = queue_decoder.decode(msgspec.json.encode({"metadata": {"name": "q"}, "spec": said}))
    return seen.spec, "1"


def reasons(place: queues.Placed) -> list[str]:
    return [reason for reason, _ in place.problems]


def test_weights_are_read_by_model_and_spelled_as_they_were_said() -> None:
    said = {"nvidia.com/gpu:H100": 4, "nvidia.com/gpu:T4": 1, "nvidia.com/gpu": 2}
    place = queues.tree({"q": spec(weights=said)})["q"]
    assert place.queue.weights == Weights(2, 1, 1, {"H100": 4, "T4": 1})
    assert not place.problems
    assert queues.weights_of(place.queue) == said


def test_a_half_life_is_read_and_where_none_is_said_it_is_that_of_the_queue_above() -> None:
    read = queues.tree(
        {
            "org": spec(usageHalfLifeSeconds=3600),
            "team": spec(parent="org"),
            "night": spec(parent="team", usageHalfLifeSeconds=7200),
            "other": spec(),
        }
    )
    of = half_lives({place.queue.path: place.queue for place in read.values()}, 86_400)
    assert [of(path) for path in ("org", "org/team", "org/team/night", "other", "nobody/at-all")] == [
        3600,
        3600,
        7200,
        86_400,
        86_400,
    ]


def test_a_half_life_of_older_days_that_makes_no_sense_is_cut_to_what_does() -> None:
    read = queues.tree({"short": spec(usageHalfLifeSeconds=1), "long": spec(usageHalfLifeSeconds=10**9)})
    assert [place.queue.half_life_s for place in read.values()] == [60, 90 * 86_400]


def test_amounts_are_read_by_resource_and_by_model() -> None:
    said = {"nvidia.com/gpu": "2.5", "cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu:H100": 2}
    place = queues.tree({"q": spec(limits=said, deserved=said, weights={"nvidia.com/gpu": 4, "cpu": 0})})["q"]
    assert queues.limits_of(place.queue) == place.queue.deserved == Quota(2500, 1500, 1024, {"H100": 2000})
    assert place.queue.weights == Weights(4, 0, 1)
    assert not place.problems
    assert queues.amounts(place.queue.deserved) == {
        "nvidia.com/gpu": "2500m",
        "cpu": "1500m",
        "memory": "1024Mi",
        "nvidia.com/gpu:H100": "2",
    }


def test_protection_is_read_and_has_defaults() -> None:
    read = queues.tree(
        {
            "plain": spec(),
            "kept": spec(
                preemptible=False, minRunSeconds=900, evictNoticeSeconds=30, evictions={"most": 0, "windowSeconds": 60}
            ),
        }
    )
    plain, kept = read["plain"].queue, read["kept"].queue
    assert (plain.preemptible, plain.min_run_s, plain.evictions, plain.evictions_window_s) == (True, 0, 3, 86_400)
    assert (plain.notice_s, kept.notice_s) == (0, 30)
    assert (kept.preemptible, kept.min_run_s, kept.evictions, kept.evictions_window_s) == (False, 900, 0, 60)


def test_paths_follow_from_parents() -> None:
    read = queues.tree({"c": spec(parent="b"), "b": spec(parent="a"), "a": spec()})
    assert {name: place.queue.path for name, place in read.items()} == {"a": "a", "b": "a/b", "c": "a/b/c"}


def test_a_queue_under_nobody_or_under_itself_stands_at_the_top_and_its_owner_is_told() -> None:
    read = queues.tree(
        {"lost": spec(parent="gone"), "a": spec(parent="b"), "b": spec(parent="a"), "c": spec(parent="a")}
    )
    paths = {name: place.queue.path for name, place in read.items()}
    assert paths == {"lost": "lost", "a": "a", "b": "b", "c": "a/c"}
    assert reasons(read["lost"]) == ["ParentMissing"]
    assert reasons(read["a"]) == reasons(read["b"]) == ["ParentCycle"]
    assert reasons(read["c"]) == []


def test_children_may_deserve_more_than_their_parent_and_the_parent_says_so() -> None:
    read = queues.tree(
        {
            "org": spec(deserved={"nvidia.com/gpu": 8, "cpu": 64}),
            "vision": spec(parent="org", deserved={"nvidia.com/gpu": 5, "cpu": 32}),
            "speech": spec(parent="org", deserved={"nvidia.com/gpu": "3500m", "cpu": 32}),
        }
    )
    ((reason, message),) = read["org"].problems
    assert reason == "ChildrenDeserveMore"
    assert message == "its children deserve 8500m of nvidia.com/gpu together, this queue 8"


def test_a_namespace_of_two_queues_is_the_first_paths_whoever_asks() -> None:
    read = queues.tree({"b": spec(namespaces=["team"]), "a": spec(namespaces=["team", "other"])})
    for order in (read.values(), reversed(read.values())):
        assert queues.of_namespaces(place.queue for place in order) == {"team": "a", "other": "a"}
    assert reasons(read["b"]) == ["NamespaceTaken"]


def test_an_amount_of_older_days_that_is_none_is_left_out_and_said() -> None:
    place = queues.tree({"q": spec(limits={"nvidia.com/gpu": "many", "cpu": 4})})["q"]
    assert queues.limits_of(place.queue) == Quota(None, 4000)
    assert reasons(place) == ["Unreadable"]
