"""What a pod asks for, what it was granted, and what is said about wishes that cannot be served."""

from typing import Any

import msgspec
import pytest

from libs.domain.nodes import Gpu
from libs.domain.resources import Charge, GpuGrant, GpuRequest, Request
from libs.kube.pods import PodView
from tests.unit.libs.kube.objects_for_tests import pod

GIB = 1024


class TestEffectiveRequest:
    def test_limits_stand_for_missing_requests(self) -> None:
        assert pod(limits={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "4"}).request == Request(
            2000, GIB, GpuRequest(count=4)
        )

    def test_init_containers_run_one_at_a_time_and_sidecars_beside_everything(self) -> None:
        def container(cpu: str, **more: Any) -> dict[str, Any]:
            return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

        view = pod(
            containers=[container("1"), container("1")],
            initContainers=[container("4"), container("500m", restartPolicy="Always"), container("2")],
            overhead={"cpu": "100m"},
        )
        # max(4, 0.5 + 2, 1 + 1 + 0.5) + 0.1
        assert view.request.cpu == 4100

    def test_a_later_init_container_runs_beside_the_sidecar(self) -> None:
        view = pod(
            containers=[{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            initContainers=[
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "3"}}},
                {"name": "i", "resources": {"requests": {"cpu": "2"}}},
            ],
        )
        assert view.request.cpu == 5000

    def test_a_pod_level_figure_replaces_the_sum(self) -> None:
        view = pod(limits={"cpu": "1", "nvidia.com/gpu": "1"}, resources={"requests": {"cpu": "6", "memory": "3Gi"}})
        assert view.request == Request(6000, 3 * GIB, GpuRequest(count=1))

    def test_pod_level_figures_mean_cpu_memory_and_huge_pages_only_and_overhead_comes_on_top(self) -> None:
        view = pod(
            limits={"example.com/fpga": "1", "hugepages-2Mi": "8Mi"},
            resources={"requests": {"cpu": "2", "hugepages-2Mi": "16Mi", "example.com/fpga": "5"}},
            overhead={"cpu": "250m", "memory": "64Mi"},
        )
        assert view.request == Request(2250, 64, extra=(("example.com/fpga", 1), ("hugepages-2Mi", 16 * 1024**2)))

    def test_pod_level_limits_stand_in_only_where_no_container_asks(self) -> None:
        asks = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
        view = pod(containers=asks, resources={"limits": {"cpu": "4", "memory": "2Gi"}})
        assert view.request == Request(1000, 2 * GIB)

    def test_cpu_is_summed_before_it_is_rounded(self) -> None:
        parts = [{"name": n, "resources": {"requests": {"cpu": "100500u"}}} for n in "ab"]
        assert pod(containers=parts).request.cpu == 201

    @pytest.mark.parametrize(
        ("reason", "cpu", "mem"),
        [
            # What the spec asks now is 2 cores and 1 GiB; 3 cores run, 2 GiB were set aside.
            ("Deferred", 3000, 2048),
            ("", 3000, 2048),
            ("Infeasible", 3000, 2048),
        ],
    )
    def test_a_pod_that_is_being_resized_counts_with_the_most_of_it(self, reason: str, cpu: int, mem: int) -> None:
        assert self.resizing(reason, asked="2").request == Request(cpu, mem)

    @pytest.mark.parametrize(("reason", "cpu"), [("Deferred", 9000), ("Infeasible", 3000)])
    def test_a_resize_that_is_infeasible_is_not_waited_for(self, reason: str, cpu: int) -> None:
        assert self.resizing(reason, asked="9").request.cpu == cpu

    def resizing(self, reason: str, asked: str) -> PodView:
        status = {
            "phase": "Running",
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else [],
            "containerStatuses": [
                {
                    "name": "c",
                    "resources": {"requests": {"cpu": "3", "memory": "1Gi"}},
                    "allocatedResources": {"cpu": "1", "memory": "2Gi"},
                }
            ],
        }
        asks = [{"name": "c", "resources": {"requests": {"cpu": asked, "memory": "1Gi"}}}]
        return pod(containers=asks, status=status, nodeName="n1")

    def test_a_pod_level_resize_counts_with_the_most_of_it(self) -> None:
        status = {
            "phase": "Running",
            "resources": {"requests": {"cpu": "6"}},
            "allocatedResources": {"cpu": "2", "memory": "3Gi"},
        }
        view = pod(resources={"requests": {"cpu": "4", "memory": "1Gi"}}, status=status, nodeName="n1")
        assert view.request == Request(6000, 3 * GIB)

    def test_memory_is_summed_before_it_is_rounded(self) -> None:
        parts = [{"name": "c", "resources": {"requests": {"memory": "100M"}}} for _ in range(2)]
        assert pod(containers=parts).request.mem == 191


class TestGpuWishes:
    @pytest.mark.parametrize(
        ("annotations", "expected"),
        [
            ({"drystone.dev/gpu-fraction": "0.5"}, GpuRequest(count=1, milli=500)),
            ({"drystone.dev/gpu-fraction": "0.3333"}, GpuRequest(count=1, milli=334)),
            ({"drystone.dev/gpu-fraction": "1"}, GpuRequest(count=1)),
            ({"drystone.dev/gpu-memory": "8192"}, GpuRequest(count=1, mib=8192)),
            ({"drystone.dev/gpu-memory": "8Gi"}, GpuRequest(count=1, mib=8192)),
            ({"drystone.dev/gpu-memory": "1.5Gi"}, GpuRequest(count=1, mib=1536)),
            (
                {"drystone.dev/gpu-memory": "1Gi", "drystone.dev/gpu-models": "H100, A100"},
                GpuRequest(count=1, mib=1024, models=("A100", "H100")),
            ),
        ],
    )
    def test_parts_of_a_device(self, annotations: dict[str, str], expected: GpuRequest) -> None:
        view = pod(annotations=annotations)
        assert view.request.gpu == expected
        assert view.unsupported == ()

    @pytest.mark.parametrize("text", ["abc", "0", "1.01", "NaN", "-0.5", "", "inf", "1e-999999999999999999999"])
    def test_a_bad_fraction_is_explained_and_takes_no_part_of_a_device(self, text: str) -> None:
        view = pod(annotations={"drystone.dev/gpu-fraction": text})
        assert "not a number above 0 and at most 1" in view.unsupported[0]

    @pytest.mark.parametrize("text", ["abc", "0", "-1", "0.5", "99999999999999", "NaN", "1e3"])
    def test_a_bad_size_is_explained(self, text: str) -> None:
        assert "is not an amount" in pod(annotations={"drystone.dev/gpu-memory": text}).unsupported[0]

    def test_contradictions_are_explained(self) -> None:
        both = pod(annotations={"drystone.dev/gpu-fraction": "0.5", "drystone.dev/gpu-memory": "1Gi"})
        assert "ask by one of them" in both.unsupported[0]
        beside = pod(annotations={"drystone.dev/gpu-fraction": "0.5"}, limits={"nvidia.com/gpu": "1"})
        assert "whole devices" in beside.unsupported[0]


class TestWishesInOthersWords:
    @pytest.mark.parametrize(
        ("annotations", "expected"),
        [
            ({"gpu-fraction": "0.5"}, GpuRequest(count=1, milli=500)),
            ({"gpu-memory": "2000"}, GpuRequest(count=1, mib=2000)),
            ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "4"}, GpuRequest(count=4, milli=250)),
            ({"gpu-memory": "2500", "gpu-fraction-num-devices": "2"}, GpuRequest(count=2, mib=2500)),
            ({"gpu-fraction": "0.5", "drystone.dev/gpu-fraction": "0.5"}, GpuRequest(count=1, milli=500)),
            ({"gpu-fraction-num-devices": "4"}, GpuRequest()),
        ],
    )
    def test_kai(self, annotations: dict[str, str], expected: GpuRequest) -> None:
        view = pod(annotations=annotations)
        assert (view.request.gpu, view.unsupported) == (expected, ())

    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            ({"nvidia.com/gpumem": "3000"}, GpuRequest(count=1, mib=3000)),
            ({"nvidia.com/gpumem-percentage": "50"}, GpuRequest(count=1, milli=500)),
            ({"nvidia.com/gpumem-percentage": "25", "nvidia.com/gpucores": "60"}, GpuRequest(count=1, milli=600)),
            ({"nvidia.com/gpumem-percentage": "100"}, GpuRequest(count=1)),
            ({"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "0"}, GpuRequest(count=1, mib=3000)),
            # The memory goes with the cores, all of it.
            ({"nvidia.com/gpucores": "30"}, GpuRequest(count=1)),
        ],
    )
    def test_hami(self, limits: dict[str, str], expected: GpuRequest) -> None:
        view = pod(limits={"cpu": "1", **limits})
        assert (view.request.gpu, view.unsupported) == (expected, ())

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ({"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}}, "hand out whole devices"),
            ({"limits": {"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}}, "by one of them"),
            ({"limits": {"nvidia.com/gpumem-percentage": "101"}}, "more than 100 percent"),
            ({"limits": {"nvidia.com/gpumem": "x"}}, "is not a quantity"),
            ({"annotations": {"gpu-fraction": "2"}}, "gpu-fraction: '2' is not a number above 0 and at most 1"),
            ({"annotations": {"gpu-fraction": "0.5", "gpu-memory": "10"}}, "both gpu-fraction and gpu-memory"),
            (
                {"annotations": {"gpu-fraction": "0.5", "drystone.dev/gpu-fraction": "0.25"}},
                "both drystone.dev/gpu-fraction and gpu-fraction",
            ),
            (
                {"annotations": {"gpu-fraction": "0.5"}, "limits": {"nvidia.com/gpumem": "10"}},
                "both gpu-fraction and nvidia.com/gpumem",
            ),
            ({"annotations": {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}}, "is not a number of devices"),
            ({"annotations": {"gpu-fraction": "0.5"}, "limits": {"nvidia.com/gpu": "1"}}, "hand out whole devices"),
            ({"annotations": {"nvidia.com/use-gputype": "A100"}}, "annotation nvidia.com/use-gputype"),
            (
                {
                    "containers": [
                        {"name": name, "resources": {"limits": {"nvidia.com/gpumem": "10"}}} for name in ("a", "b")
                    ]
                },
                "in several containers",
            ),
        ],
    )
    def test_what_cannot_be_served_as_it_was_meant_is_explained(self, spec: dict[str, Any], said: str) -> None:
        assert said in pod(**spec).unsupported[0]

    def test_a_pod_of_hami_that_another_scheduler_placed_is_charged_by_count(self) -> None:
        view = pod(schedulerName="hami-scheduler", limits={"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"})
        assert view.charge().blind == 2


class TestUnsupported:
    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ({"resourceClaims": [{"name": "x"}]}, "resource claims"),
            ({"volumes": [{"name": "v", "rbd": {"image": "x"}}]}, "volume of kind rbd"),
        ],
    )
    def test_a_feature_that_is_not_understood_is_named(self, spec: dict[str, Any], said: str) -> None:
        assert pod(**spec).unsupported == (said,)

    def test_plain_things_are_fine(self) -> None:
        kinds = ("emptyDir", "configMap", "secret", "projected", "downwardAPI", "hostPath")
        view = pod(
            volumes=[{"name": k, k: {}} for k in kinds],
            affinity={},
            topologySpreadConstraints=[],
            containers=[{"name": "c", "ports": [{"containerPort": 80}]}],
        )
        assert view.unsupported == ()

    def test_a_gate_is_no_feature_but_holds_the_task(self) -> None:
        view = pod(schedulingGates=[{"name": "x"}])
        assert (view.gated, view.unsupported) == (True, ())
        assert view.to_task().unsupported == ("scheduling gates",)

    @pytest.mark.parametrize("text", ["0", "-3", "many", "1e9", "99999999999999999999"])
    def test_a_bad_minimum_is_explained(self, text: str) -> None:
        view = pod(annotations={"drystone.dev/gang-min": text})
        assert view.gang_min == 0
        assert "is not a number of pods" in view.unsupported[0]

    def test_rubbish_is_an_error_of_decoding_and_nothing_else(self) -> None:
        for raw in (b"", b"[]", b'{"metadata":3}', b"{}"):
            with pytest.raises(msgspec.MsgspecError):
                from libs.kube.pods import parse_pod

                parse_pod(raw)


class TestCharge:
    GRANT = {"drystone.dev/gpus": "0,3", "drystone.dev/gpu-memory-mib": "40960", "drystone.dev/gpu-milli": "1000"}  # noqa: RUF012
    BOUND = {"nodeName": "n1", "limits": {"cpu": "1", "nvidia.com/gpu": "2"}}  # noqa: RUF012

    def test_the_grant_on_the_pod_is_the_charge(self) -> None:
        view = pod(annotations=self.GRANT, **self.BOUND)
        assert view.holds
        assert view.charge() == Charge(1000, 0, (GpuGrant(0, 1000, 40960), GpuGrant(3, 1000, 40960)))

    def test_a_grant_is_not_believed_on_a_foreign_pod(self) -> None:
        view = pod(annotations=self.GRANT, schedulerName="default-scheduler", **self.BOUND)
        assert view.charge() == Charge(1000, 0, (), blind=2)

    @pytest.mark.parametrize("gpus", ["0", "0,0", "0,x", "0,9", "", "0;3", "-1,2"])
    def test_a_grant_that_cannot_be_true_is_charged_by_count(self, gpus: str) -> None:
        view = pod(annotations={**self.GRANT, "drystone.dev/gpus": gpus}, **self.BOUND)
        assert view.charge([Gpu(i, 40960) for i in range(8)]) == Charge(1000, 0, (), blind=2)

    def test_a_share_without_figures_follows_from_the_request_and_the_device(self) -> None:
        view = pod(annotations={"drystone.dev/gpu-fraction": "0.25", "drystone.dev/gpus": "1"}, nodeName="n1")
        assert view.charge([Gpu(0, 40960), Gpu(1, 40960)]).gpus == (GpuGrant(1, 250, 10240),)

    def test_ended_pods_hold_nothing_and_leaving_ones_all(self) -> None:
        assert not pod(status={"phase": "Failed"}, **self.BOUND).holds
        assert pod(meta={"deletionTimestamp": "2026-11-30T06:00:00Z"}, **self.BOUND).holds


class TestWhoComesAgain:
    """A pod that is evicted so that another fits must come again, and nobody must count that against it."""

    def owned(self, kind: str, api: str = "apps/v1", **annotations: str) -> PodView:
        owner = {"apiVersion": api, "kind": kind, "name": "o", "uid": "u", "controller": True}
        said = {f"drystone.dev/{name}": value for name, value in annotations.items()}
        return pod(meta={"ownerReferences": [owner]}, annotations=said, limits={"nvidia.com/gpu": "1"},
                   nodeSelector={"pool": "a"})  # fmt: skip

    @pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
    def test_what_is_made_again_however_often_may_move(self, kind: str) -> None:
        wishes = self.owned(kind).wishes
        assert wishes is not None
        assert (wishes.request.gpu.count, wishes.node_selector) == (1, {"pool": "a"})

    def test_a_training_job_s_pod_may_move_and_one_of_that_name_from_elsewhere_may_not(self) -> None:
        assert self.owned("TrainingJob", "drystone.dev/v1alpha1").wishes is not None
        assert self.owned("TrainingJob", "example.com/v1").wishes is None

    def test_a_job_that_may_give_up_moves_only_when_it_says_so(self) -> None:
        assert self.owned("Job", "batch/v1").wishes is None
        assert self.owned("PyTorchJob", "kubeflow.org/v1").wishes is None
        assert self.owned("Job", "batch/v1", preemptible="true").wishes is not None

    def test_what_nothing_controls_does_not_come_again(self) -> None:
        assert pod(annotations={"drystone.dev/preemptible": "true"}).wishes is None
