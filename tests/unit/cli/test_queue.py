"""`drystone queue`: the tree as the API server has it, with or without anybody who writes statuses."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from cli.errors import CommandError
from cli.queue import queue
from libs.kube import writes
from libs.kube.embedded import EmbeddedCluster
from libs.kube.port import Answer

HALF = 3600


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> EmbeddedCluster:
    cluster = EmbeddedCluster()

    class Caller:
        async def call(self, *args: Any, **kwargs: Any) -> Answer:
            return await cluster.call(*args, **kwargs)

        async def close(self) -> None:
            return None

    monkeypatch.setattr("cli.access.KubeClient.from_kubeconfig", lambda _path: Caller())
    return cluster


def make(server: EmbeddedCluster, name: str, status: dict[str, Any] | None = None, **spec: Any) -> None:
    assert server.call_now("POST", writes.QUEUES, json.dumps({"metadata": {"name": name}, "spec": spec}).encode()).ok
    if status is not None:
        body = json.dumps({"status": status}).encode()
        assert server.call_now("PATCH", f"{writes.QUEUES}/{name}/status", body, content_type=writes.MERGE).ok


def standing(gpus: int, jobs: int = 0) -> dict[str, Any]:
    """A queue that has held so many GPUs for very long."""
    return {
        "used": {"nvidia.com/gpu": str(gpus), "cpu": "1500m", "memory": "2048Mi", "nvidia.com/gpu:A100": str(gpus)},
        "pending": {"jobs": jobs, "tasks": jobs, "gpus": str(2 * jobs)},
        "history": {"at": time.time(), "halfLifeSeconds": HALF, "gpuMilliSeconds": int(gpus * 1000 * HALF / 0.693147)},
    }


@pytest.fixture
def tree(server: EmbeddedCluster) -> EmbeddedCluster:
    make(server, "org", standing(9, 1), limits={"nvidia.com/gpu": 16}, deserved={"nvidia.com/gpu": 9})
    make(server, "vision", standing(6), parent="org", deserved={"nvidia.com/gpu": 4}, namespaces=["team-v"])
    make(server, "speech", standing(3, 1), parent="org", deserved={"nvidia.com/gpu": 6, "cpu": 4})
    make(server, "fresh", parent="nobody")
    return server


def test_the_table_says_who_stands_above_its_share_and_who_below(
    tree: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert queue() == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in text.splitlines() if not line.startswith("!")}
    assert lines["org"][1:] == ["!", "16", "9", "9", "9", "even", "1", "job,", "2", "GPUs"]
    assert lines["vision"][1:] == ["-", "4", "6", "6", "2", "over", "-"]
    assert lines["speech"][1:] == ["-", "6", "3", "3", "3", "under", "1", "job,", "2", "GPUs"]
    assert lines["fresh"][1:] == ["!", "-", "-", "-", "-", "-", "-"]
    assert text.index("fresh") < text.index("org") < text.index("  speech") < text.index("  vision")
    assert "! fresh: ParentMissing: there is no queue nobody" in text
    assert "! org: ChildrenDeserveMore" in text


def test_one_queue_by_path_or_name_with_what_protects_it(
    tree: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("org/vision", "vision"):
        assert queue(name) == 0
        text = capsys.readouterr().out
        assert "speech" not in text
        assert "namespaces: team-v" in text
        assert "evicted at most 3 times in 24 h" in text
    with pytest.raises(CommandError, match="there is no queue team"):
        queue("team")


def test_an_eviction_says_for_whom_and_by_which_rule(
    server: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = {
        "job": "gang/team/low",
        "beneficiary": "pod/team/urgent-0",
        "rule": "priority",
        "at": 1_796_000_000,
        "pods": 3,
    }
    old = {"workload": "gang/team/old", "times": [1_795_000_000]}
    evictions = [{"workload": "gang/team/low", "times": [1_796_000_000] * 3, "reasons": [reason]}, old]
    make(server, "vision", {**standing(1), "evictions": evictions})
    assert queue("vision") == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("evicted: gang/team/low, 3 times")]
    said = "gang/team/low, 3 pods, was evicted for pod/team/urgent-0 by rule priority at 2026-11-30T00:53:20Z"
    assert lines[at + 1].strip() == said
    assert queue("vision", as_json=True) == 0
    (vision,) = json.loads(capsys.readouterr().out)
    assert vision["reasons"]["gang/team/low"] == [reason]


def test_other_resources_and_models(tree: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert queue("speech", resource="cpu") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "org/speech",
        "-",
        "4",
        "1.5",
        "0",
        "2.5",
        "under",
        "1",
        "job",
    ]
    assert queue("speech", resource="A100") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[3] == "3"
    with pytest.raises(CommandError, match="B200 is neither"):
        queue(resource="B200")


def test_json_has_all_of_it(tree: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert queue("org", as_json=True) == 0
    org, speech, vision = json.loads(capsys.readouterr().out)
    assert (org["path"], vision["path"]) == ("org", "org/vision")
    assert vision["over"] == {"nvidia.com/gpu": "2"}
    assert speech["over"] == {"nvidia.com/gpu": "-3", "cpu": "-2500m"}
    assert vision["used"]["memory"] == "2048Mi"
    assert vision["recent"]["nvidia.com/gpu"] in ("6", "5999m", "6001m")


def test_nothing_and_nobody(server: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert queue() == 0
    assert capsys.readouterr().out == "no queues\n"


def test_who_waits_in_the_queue_is_named_by_place_as_placement_said_it(
    tree: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, place, at in (("late", "2nd", 9), ("early", "1st", 5), ("other", "1st", 1)):
        queue_ = "org/vision" if name == "other" else "org/speech"
        said = f"0/3 nodes fit. {place} of 2 waiting in queue {queue_} (about {at}th of all); expected start: unknown"
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedulerName": "drystone", "containers": [{"name": "c", "image": "i", "resources": {}}]},
        }
        answer = tree.call_now("POST", writes.pods_path("default"), json.dumps(body).encode())
        assert answer.ok, answer.body
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        status = json.dumps({"status": {"conditions": [condition]}}).encode()
        path = writes.pods_path("default", name, "status")
        assert tree.call_now("PATCH", path, status, content_type=writes.MERGE).ok
    assert queue("speech") == 0
    waits = [line for line in capsys.readouterr().out.splitlines() if line.startswith("waits:")]
    assert [line.split()[1] for line in waits] == ["default/early:", "default/late:"]
    assert queue("org/speech", as_json=True) == 0
    (speech,) = json.loads(capsys.readouterr().out)
    assert [(one["job"], one["position"]) for one in speech["line"]] == [("default/early", 1), ("default/late", 2)]


def test_a_model_has_its_weight_and_its_past_and_the_half_life_says_whose_it_is(
    server: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    past = standing(6)
    past["history"]["gpuMilliSecondsByModel"] = {"H100": int(2000 * HALF / 0.693147)}
    make(server, "org", past, usageHalfLifeSeconds=HALF, weights={"nvidia.com/gpu": 2, "nvidia.com/gpu:H100": 5})
    make(server, "team", past, parent="org")
    make(server, "free", {**past, "history": {**past["history"], "halfLifeSeconds": 24 * HALF}})
    assert queue("org", resource="H100") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].split()[4] == "2"
    assert "weights: nvidia.com/gpu 2, nvidia.com/gpu:H100 5" in text
    assert "half-life of its use: 1 h, its own" in text
    for name, said in (("team", "1 h, as org says"), ("free", "24 h, of the service")):
        assert queue(name) == 0
        assert f"half-life of its use: {said}" in capsys.readouterr().out
    assert queue() == 0
    assert "a half is forgotten every 1 h to 24 h, by queue" in capsys.readouterr().out
    assert queue("team", as_json=True) == 0
    (team,) = json.loads(capsys.readouterr().out)
    assert (team["halfLifeSeconds"], team["halfLifeOf"], team["weights"]) == (HALF, "org", {})
