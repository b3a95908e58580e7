"""Writes are counted for each user; leases and unfinished answers are not."""

import json
from pathlib import Path

from tools.stack.audit import Write, count_by_user, writes


def entry(
    user: str, resource: str, *, sub: str = "", verb: str = "create", stage: str = "ResponseComplete", code: int = 201
) -> str:
    target = {"resource": resource, **({"subresource": sub} if sub else {})}
    return json.dumps(
        {
            "stage": stage,
            "verb": verb,
            "user": {"username": user},
            "objectRef": target,
            "responseStatus": {"code": code},
        }
    )


def test_counting(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    lines = [
        entry("binder", "pods", sub="binding"),
        entry("binder", "pods", sub="binding"),
        entry("binder", "pods", sub="binding", code=409),
        entry("binder", "leases", verb="update", code=200),
        entry("watcher", "pods", verb="patch", stage="Panic"),
        entry("watcher", "events"),
    ]
    log.write_text("\n".join(lines) + "\n" + '{"stage": "Respon', encoding="utf-8")
    found = list(writes(log))
    assert found[0] == Write("binder", "create", "pods/binding", 201)
    assert count_by_user(found) == {("binder", "pods/binding"): 2, ("watcher", "events"): 1}
    assert count_by_user(found, only_done=False)["binder", "pods/binding"] == 3


def test_counting_from_a_point_on(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(entry("a", "pods") + "\n", encoding="utf-8")
    start = log.stat().st_size
    with log.open("a", encoding="utf-8") as more:
        more.write(entry("b", "pods") + "\n")
    assert [write.user for write in writes(log, start)] == ["b"]
