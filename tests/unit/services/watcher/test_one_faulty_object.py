"""An object on which the watcher fails is counted and told; all others of its list are seen."""

from __future__ import annotations

from services.watcher.decide import Picture
from services.watcher.lists import handlers
from tests.unit.libs.kube.objects_for_tests import raw_node, raw_pod


def test_a_pod_that_cannot_be_decoded_for_its_depth_does_not_end_the_watcher() -> None:
    unreadable: list[str] = []
    faulty: list[Exception] = []
    picture = Picture(1, {}, unreadable.append, faulty=lambda _of, error: faulty.append(error))
    deep = raw_pod("deep")[:-1] + b',"zz":' + b"[" * 9_000 + b"]" * 9_000 + b"}"
    listed, event = handlers(picture)["pods"]
    listed([raw_pod("a"), deep, raw_pod("b")])
    event("ADDED", deep)
    assert sorted(picture.pods.by_uid) == ["uid-a", "uid-b"]
    assert {type(error) for error in faulty} == {RecursionError}
    assert len(unreadable) >= 2


def test_a_node_of_absurd_size_is_seen_like_any_other() -> None:
    picture = Picture(1, {})
    absurd = dict.fromkeys(("cpu", "memory", "pods", "nvidia.com/gpu", "ephemeral-storage"), "9" * 400)
    picture.node_event("ADDED", raw_node("n1", allocatable=absurd))
    assert list(picture.take().nodes) == ["n1"]
