"""Pods of TrainingJobs are bound at birth, and nobody can dress them up."""

import msgspec
import pytest

from libs.domain.plans import Assignment
from libs.domain.resources import Charge, GpuGrant
from libs.kube import boundpods, trainingjobs
from libs.kube.grouping import job_of
from libs.kube.pods import parse_pod
from libs.kube.trainingjobs import TrainingJobView
from tests.unit.libs.kube.test_trainingjobs import container, job, role


def assignment(view: TrainingJobView, index: int = 0) -> Assignment:
    return Assignment(
        claim="1.0.1.1.0",
        task=f"j/worker/{index}/0",
        name=trainingjobs.pod_name(view.name, "worker", index, 0),
        node="n1",
        node_spec="s",
        charge=Charge(gpus=(GpuGrant(2, 500, 8192),)),
        create=True,
        role="worker",
        index=index,
    )


class TestWhatTheJobDeclares:
    def test_it_is_said_of_the_job_and_of_every_pod_that_is_made_for_it(self) -> None:
        view = job(preemptible=False, expectedSeconds=7200, checkpointSeconds=600)
        head = trainingjobs.head_of(view, 0)
        made = job_of(parse_pod(boundpods.pod_manifest(view, assignment(view), 0)))
        for seen in (head, made):
            assert (seen.preemptible, seen.expected_s, seen.checkpoint_s) == (False, 7200, 600)
            assert seen.workload == "TrainingJob/team-a/j"

    def test_a_template_does_not_speak_for_the_job(self) -> None:
        template = {**container(), "metadata": {"annotations": {"drystone.dev/preemptible": "false"}}}
        view = job([role(template=template)])
        assert job_of(parse_pod(boundpods.pod_manifest(view, assignment(view), 0))).preemptible


class TestManifest:
    def test_a_pod_bound_at_birth_with_what_was_granted(self) -> None:
        view = job()
        pod = parse_pod(boundpods.pod_manifest(view, assignment(view, 1), 0))
        assert (pod.node, pod.name, pod.claim, pod.scheduler) == ("n1", "run-1-worker-1-0", "1.0.1.1.0", "drystone")
        assert (pod.role, pod.index, pod.attempt, pod.gang_min) == ("worker", 1, 0, 2)
        assert pod.charge().gpus == (GpuGrant(2, 500, 8192),)
        assert pod.training_job is not None

    def test_a_template_cannot_choose_its_node_its_devices_or_its_scheduler(self) -> None:
        template = {
            "metadata": {"annotations": {"drystone.dev/gpus": "0,1,2,3", "note": "kept"}},
            **container(nodeName="elsewhere", schedulerName="other", priority=10**9, schedulingGates=[{"name": "g"}]),
        }
        template["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        view = job([role(template=template)])
        raw = boundpods.pod_manifest(view, assignment(view), 0)
        pod, spec = parse_pod(raw), msgspec.json.decode(raw)["spec"]
        assert (pod.node, pod.scheduler, pod.gated, pod.priority) == ("n1", "drystone", False, None)
        assert (pod.annotations["drystone.dev/gpus"], pod.annotations["note"]) == ("2", "kept")
        assert [e.get("value") for e in spec["containers"][0]["env"]] == [None]
        assert spec["restartPolicy"] == "Never"

    def test_a_template_that_cannot_be_read_is_refused(self) -> None:
        view = job([role(template={"spec": []})])
        with pytest.raises(ValueError, match="cannot be read"):
            boundpods.pod_manifest(view, assignment(view), 0)

    def test_priority_goes_where_it_belongs(self) -> None:
        word, named = job(priority="low"), job(priority="gold")
        assert parse_pod(boundpods.pod_manifest(word, assignment(word), 0)).priority_word == "low"
        assert parse_pod(boundpods.pod_manifest(named, assignment(named), 0)).priority_class == "gold"
