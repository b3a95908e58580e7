"""TrainingJobs: read, and expanded into tasks."""

from typing import Any

import msgspec
import pytest

from libs.domain.jobs import Phase
from libs.domain.resources import GpuRequest
from libs.domain.verdicts import Reason
from libs.kube import trainingjobs
from libs.kube.grouping import Known
from libs.kube.trainingjobs import TrainingJobView


def job(roles: list[dict[str, Any]] | None = None, name: str = "run-1", **spec: Any) -> TrainingJobView:
    return trainingjobs.parse(
        msgspec.json.encode(
            {
                "metadata": {"name": name, "namespace": "team-a", "uid": "j", "resourceVersion": "5"},
                "spec": {"roles": roles or [role()], **spec},
            }
        )
    )


def role(name: str = "worker", replicas: int = 2, template: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "template": template or container(), **more}


def container(**spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {"spec": {"containers": [main], **spec}}


class TestMinima:
    def test_all_are_needed_unless_said_otherwise(self) -> None:
        assert job([role("m", 1), role("w", 4)]).gang_min == 5
        assert job([role("m", 1), role("w", 4, min=2)]).gang_min == 3
        assert job([role("w", 4, min=1)], gangMin=3).gang_min == 3

    def test_what_cannot_be_is_bent_into_what_can(self) -> None:
        assert job([role("w", 4)], gangMin=99).gang_min == 4
        assert job([role("w", 4)], gangMin=1).gang_min == 4


class TestTooManyTasks:
    def test_a_job_with_more_than_are_served_is_barred_for_ever_and_has_one_task_to_say_so(self) -> None:
        known = Known(most_tasks=100)
        head, tasks = trainingjobs.expand(job([role("m", 1), role("w", 100_000), role("x", 100_000)]), 0, known)
        assert [t.name for t in tasks] == ["run-1-m-0-0"]
        assert head.declared == 200_001
        assert head.barred is not None
        assert (head.barred.never, head.barred.reason) == (True, Reason.TOO_MANY_TASKS)
        assert head.barred.message == "the job has 200001 tasks, at most 100 of one job are served"

    def test_as_many_as_are_served_are_all_there(self) -> None:
        head, tasks = trainingjobs.expand(job([role("m", 1), role("w", 99)]), 0, Known(most_tasks=100))
        assert (head.barred, len(tasks)) == (None, 100)


class TestStatus:
    def test_a_status_that_is_none_of_ours_does_not_hide_the_job(self) -> None:
        raw = {"metadata": {"name": "a", "uid": "u"}, "spec": {"roles": [role()]}, "status": {"phase": "Elsewhere"}}
        view = trainingjobs.parse(msgspec.json.encode(raw))
        assert (view.name, view.replicas, view.status.phase) == ("a", 2, Phase.PENDING)


class TestExpand:
    def test_one_task_per_replica_with_a_name_of_its_own(self) -> None:
        head, tasks = trainingjobs.expand(job([role("m", 1), role("w", 2)], id="x", priority="high"), 3)
        assert [t.name for t in tasks] == ["run-1-m-0-3", "run-1-w-0-3", "run-1-w-1-3"]
        assert tasks[2].id == "j/w/1/3"
        assert all(t.create and t.request.gpu == GpuRequest(count=1) for t in tasks)
        assert (head.key, head.uid, head.attempt, head.priority, head.external_id) == (
            "job/team-a/run-1",
            "j",
            3,
            100,
            "x",
        )

    def test_a_priority_class_is_known_by_its_value(self) -> None:
        assert trainingjobs.expand(job(priority="gold"), 0, Known(priorities={"gold": 5}))[0].priority == 5

    @pytest.mark.parametrize("template", [{"spec": []}, {"spec": {"containers": 4}}, {"spec": {"volumes": [1]}}])
    def test_a_broken_template_is_a_verdict_and_no_crash(self, template: Any) -> None:
        _, tasks = trainingjobs.expand(job([role(template=template)]), 0)
        assert all(t.unsupported for t in tasks)


class TestNames:
    def test_long_names_stay_labels_and_stay_apart(self) -> None:
        names = {trainingjobs.pod_name("j" * 60, "worker", i, a) for i in range(50) for a in range(3)}
        assert len(names) == 150
        assert all(len(n) <= 63 for n in names)

    def test_ids_of_two_tenants_never_meet(self) -> None:
        assert trainingjobs.object_name("a", "b/c") != trainingjobs.object_name("a/b", "c")
        assert trainingjobs.object_name("a", "x") == trainingjobs.object_name("a", "x")
        assert trainingjobs.object_name("a", "Größe 7!").isascii()

    def test_task_ids_come_apart_again(self) -> None:
        assert trainingjobs.task_of(trainingjobs.task_id("u", "w", 3, 1)) == ("u", "w", 3, 1)
        assert trainingjobs.task_of("0b9c7c6e-uid") is None


def test_status_replaces_the_whole_and_names_its_job() -> None:
    status = trainingjobs.TrainingJobStatus(phase=Phase.PENDING, attempt=1)
    test, add = msgspec.json.decode(trainingjobs.status_patch("j", status))
    assert test == {"op": "test", "path": "/metadata/uid", "value": "j"}
    assert add["value"]["phase"] == "Pending"
    assert "startTime" not in add["value"]
