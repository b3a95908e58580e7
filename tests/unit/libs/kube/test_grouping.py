"""Which job a pod belongs to, and who pays for it."""

import pytest

from libs.domain.verdicts import Reason
from libs.kube.declared import notes, saved_at
from libs.kube.grouping import Known, job_key, job_of
from tests.unit.libs.kube.objects_for_tests import pod

OWNER = {
    "apiVersion": "drystone.dev/v1alpha1",
    "kind": "TrainingJob",
    "name": "run-1",
    "uid": "job-uid",
    "controller": True,
}


class TestKey:
    def test_a_pod_alone(self) -> None:
        head = job_of(pod("p"))
        assert (head.key, head.gang_min, head.declared) == ("pod/team-a/p", 1, 1)

    def test_a_gang_named_on_its_pods(self) -> None:
        head = job_of(pod(annotations={"drystone.dev/job": "g", "drystone.dev/gang-min": "4"}))
        assert (head.key, head.gang_min) == ("gang/team-a/g", 4)

    def test_labels_name_a_gang_as_well(self) -> None:
        assert job_of(pod(labels={"drystone.dev/job": "g", "drystone.dev/gang-min": "2"})).gang_min == 2

    @pytest.mark.parametrize(
        "where",
        [
            {"labels": {"scheduling.x-k8s.io/pod-group": "pg"}},
            {"labels": {"pod-group.scheduling.sigs.k8s.io": "pg"}},
            {"annotations": {"scheduling.k8s.io/group-name": "pg"}},
            {"annotations": {"pod-group-name": "pg"}},
            {"annotations": {"gang.scheduling.koordinator.sh/name": "pg"}},
        ],
    )
    def test_pod_groups_of_other_schedulers(self, where: dict[str, dict[str, str]]) -> None:
        head = job_of(pod(**where), Known(pod_group_min=lambda ns, name: 8 if (ns, name) == ("team-a", "pg") else None))
        assert (head.key, head.gang_min) == ("podgroup/team-a/pg", 8)

    def test_a_gang_whose_group_is_unseen_waits_instead_of_starting_in_part(self) -> None:
        member = pod(labels={"scheduling.x-k8s.io/pod-group": "pg"})
        barred = job_of(member).barred
        assert barred is not None
        assert barred.reason is Reason.POD_GROUP
        assert not barred.never
        assert "PodGroup team-a/pg has not been seen" in barred.message
        assert "created" in barred.helps
        assert job_of(member, Known(pod_group_min=lambda _ns, _name: 3)).barred is None
        assert job_of(pod()).barred is None

    def test_koordinator_says_its_minimum_on_the_pod(self) -> None:
        member = pod(
            annotations={
                "gang.scheduling.koordinator.sh/name": "g",
                "gang.scheduling.koordinator.sh/min-available": "3",
            }
        )
        assert job_of(member).barred is None
        assert job_of(member).gang_min == 3

    def test_pods_we_created_belong_to_their_training_job(self) -> None:
        said = {
            "drystone.dev/task": "worker/1/2",
            "drystone.dev/gang-min": "8",
            "drystone.dev/job-key": "job/team-a/run-1",
        }
        member = pod(annotations=said, meta={"ownerReferences": [OWNER]})
        head = job_of(member)
        assert (head.key, head.uid, head.gang_min, head.attempt) == ("job/team-a/run-1", "job-uid", 8, 2)
        assert member.task_id == "job-uid/worker/1/2"

    def test_nobody_joins_a_training_job_by_writing_its_name(self) -> None:
        forged = pod(annotations={"drystone.dev/job-key": "job/team-b/secret", "drystone.dev/task": "worker/0/0"})
        assert job_key(forged) == "pod/team-a/p"
        assert forged.task_id == "uid-p"


class TestWhatItsOwnerDeclares:
    def test_what_a_pod_declares_is_its_jobs(self) -> None:
        head = job_of(
            pod(
                annotations={
                    "drystone.dev/preemptible": "false",
                    "drystone.dev/expected-seconds": "7200",
                    "drystone.dev/checkpoint-seconds": "600",
                }
            )
        )
        assert (head.preemptible, head.expected_s, head.checkpoint_s) == (False, 7200, 600)

    def test_what_cannot_be_read_is_no_word_at_all_and_a_note_tells(self) -> None:
        said = {
            "drystone.dev/preemptible": "perhaps",
            "drystone.dev/expected-seconds": "2h",
            "drystone.dev/checkpoint-seconds": "0",
            "drystone.dev/checkpoint-at": "just now",
        }
        head = job_of(pod(annotations=said))
        assert (head.preemptible, head.expected_s, head.checkpoint_s) == (True, 0, 0)
        assert not pod(annotations=said).unsupported
        assert [note.partition(":")[0] for note in notes(said)] == list(said)
        assert not notes({"drystone.dev/preemptible": "False", "drystone.dev/expected-seconds": "60"})

    @pytest.mark.parametrize(
        ("said", "at"),
        [
            ("1767323045", 1_767_323_045.0),
            ("2026-01-02T03:04:05Z", 1_767_323_045.0),
            (" 2026-01-02T04:04:05+01:00 ", 1_767_323_045.0),
            ("2026-01-02T03:04:05", 0.0),  # of no zone: nobody knows which moment that is
            ("0001-01-01T00:00:00Z", 0.0),
            ("9" * 11, 0.0),
            ("", 0.0),
        ],
    )
    def test_a_pod_says_when_it_saved_its_work(self, said: str, at: float) -> None:
        assert saved_at({"drystone.dev/checkpoint-at": said}) == at

    def test_a_pod_group_speaks_for_its_pods_and_a_pod_for_itself(self) -> None:
        group = {"drystone.dev/preemptible": "false", "drystone.dev/checkpoint-seconds": "60"}
        known = Known(pod_group_min=lambda _ns, _name: 2, pod_group_annotations=lambda _ns, _name: group)
        labels = {"scheduling.x-k8s.io/pod-group": "pg"}
        head = job_of(pod(labels=labels, annotations={"drystone.dev/checkpoint-seconds": "30"}), known)
        assert (head.preemptible, head.checkpoint_s) == (False, 30)
        assert job_of(pod(), known).preemptible

    def test_evictions_are_counted_by_what_makes_the_pod_again(self) -> None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u-1", "controller": True}
        assert job_of(pod(meta={"ownerReferences": [owner]})).workload == "Job/team-a/u-1"
        assert job_of(pod(meta={"ownerReferences": [{**owner, "controller": False}]})).workload == "pod/team-a/p"
        assert job_of(pod(annotations={"drystone.dev/job": "g"})).workload == "gang/team-a/g"


class TestQueueAndTenant:
    KNOWN = Known(
        tenants={"team-a": "acme"}, namespace_queues={"team-a": "research/a"}, queue_paths={"v": "research/v"}
    )

    def test_the_pods_word_then_labels_then_the_namespace_then_the_default(self) -> None:
        assert job_of(pod(annotations={"drystone.dev/queue": "v"}), self.KNOWN).queue == "research/v"
        assert job_of(pod(labels={"kueue.x-k8s.io/queue-name": "x"}), self.KNOWN).queue == "x"
        assert job_of(pod(), self.KNOWN).queue == "research/a"
        assert job_of(pod()).queue == "default"

    def test_the_tenant_comes_from_the_namespace_alone(self) -> None:
        assert job_of(pod(labels={"drystone.dev/tenant": "other"}), self.KNOWN).tenant == "acme"
        assert job_of(pod()).tenant == "team-a"


class TestPriority:
    def test_a_class_beats_the_word_and_the_word_beats_nothing(self) -> None:
        assert job_of(pod(priority=700, priorityClassName="c", labels={"priority": "low"})).priority == 700
        assert job_of(pod(priority=0, labels={"priority": "low"})).priority == -100
        assert job_of(pod(priority=0, labels={"priority": "urgent"})).priority == 0

    def test_a_pod_that_must_not_preempt_does_not(self) -> None:
        assert not job_of(pod(preemptionPolicy="Never")).preempts


class TestWhoMayNameAQueue:
    KNOWN = Known(
        queue_paths={"vision": "research/vision"},
        queue_namespaces={"research/vision": frozenset({"team-b", "team-c"})},
    )

    def test_a_queue_of_other_namespaces_is_not_open(self) -> None:
        for said in ({"annotations": {"drystone.dev/queue": "vision"}}, {"labels": {"kai.scheduler/queue": "vision"}}):
            head = job_of(pod(**said), self.KNOWN)
            assert head.queue == "research/vision"
            assert head.barred is not None
            assert (head.barred.reason, head.barred.never) == (Reason.QUEUE_CLOSED, True)
            assert "is for the namespaces team-b, team-c alone" in head.barred.message

    def test_its_own_namespaces_may_name_it_and_everybody_a_queue_without_any(self) -> None:
        member = pod(annotations={"drystone.dev/queue": "vision"}, meta={"namespace": "team-b"})
        assert job_of(member, self.KNOWN).barred is None
        assert job_of(pod(annotations={"drystone.dev/queue": "research"}), self.KNOWN).barred is None

    def test_who_names_none_is_not_barred(self) -> None:
        known = Known(queue_namespaces={"default": frozenset({"team-b"})})
        assert job_of(pod(), known).barred is None
