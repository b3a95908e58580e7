"""Devices whose size a node does not declare are known by what is measured, while that is fresh."""

from __future__ import annotations

from libs.contracts.events import GpuFact, GpuFacts
from libs.domain.nodes import Gpu, Node
from libs.domain.resources import Charge, GpuGrant
from services.placement.measured import Measured, Measurements, filled

HALF_DECLARED = Node("n", "u", "1", "s", gpus=(Gpu(0, 0), Gpu(1, 40960, "A100")))


def test_measured_sizes_fill_in_only_what_is_not_declared_and_only_while_fresh() -> None:
    node = HALF_DECLARED
    facts = {0: Measured(81920, "NVIDIA H100", "GPU-0", 10.0), 1: Measured(1, "other", "GPU-1", 10.0)}
    fresh = filled(node, facts, now=20.0, max_age_s=60.0)
    assert fresh.gpus[0] == Gpu(0, 81920, "NVIDIA-H100", "GPU-0")
    assert (fresh.gpus[1].mib, fresh.gpus[1].model) == (40960, "A100")
    assert filled(node, facts, now=71.0, max_age_s=60.0).gpus == node.gpus


def measurements() -> Measurements:
    made = Measurements(60.0)
    made.take(GpuFacts("n", (GpuFact(0, "GPU-0", "H100", 81920, 0, 0.0),)), 10.0)
    return made


def test_a_node_is_told_anew_as_it_declares_itself_when_its_measurements_have_aged() -> None:
    measured = measurements()
    assert measured.complete(HALF_DECLARED, 20.0).gpus[0].mib == 81920
    assert "1 node are measured" in measured.note()
    assert measured.forget_old(60.0) == []
    assert measured.forget_old(71.0) == ["n"]
    assert measured.note() == ""
    assert measured.complete(HALF_DECLARED, 71.0) is HALF_DECLARED


def test_a_new_engine_is_told_what_was_fresh_when_it_was_measured() -> None:
    assert measurements().complete(HALF_DECLARED, None).gpus[0].mib == 81920


def test_memory_of_a_device_whose_size_is_only_measured_is_claimed_as_its_share_rounded_up() -> None:
    measured = measurements()
    measured.complete(HALF_DECLARED, 20.0)
    charge = Charge(gpus=(GpuGrant(0, 100, 8193), GpuGrant(1, 500, 20480)))
    granted = measured.grantable("n", HALF_DECLARED, charge).gpus
    assert granted == (GpuGrant(0, 101, 0), GpuGrant(1, 500, 20480))
    assert measured.grantable("other", None, charge) is charge
