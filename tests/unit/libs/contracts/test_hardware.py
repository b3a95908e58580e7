"""What operators tell of their hardware: read, checked, and refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from libs.contracts.hardware import GpuModelEntry, TopologyLevel, default_levels, gpu_models_of, levels_of
from libs.domain.topology import LEVELS, Level


def test_the_default_levels_are_those_of_the_domain() -> None:
    assert levels_of(default_levels()) == LEVELS
    row = TopologyLevel(name="row", label="example.com/row")
    assert levels_of([row]) == (Level("row", "example.com/row"),)


@pytest.mark.parametrize(("what", "second"), [("name", "other.com/row"), ("label", "example.com/row")])
def test_two_levels_that_are_one_are_refused(what: str, second: str) -> None:
    levels = [
        TopologyLevel(name="row", label="example.com/row"),
        TopologyLevel(name="row" if what == "name" else "line", label=second),
    ]
    with pytest.raises(ValueError, match=f"two levels have the {what}"):
        levels_of(levels)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"names": [], "tflops": {"fp32": 1}}, "entry 0 has no names, or an empty one"),
        ({"names": ["X"], "tflops": {"fp12": 1}}, r"entry 0 \(X\): 'fp12' is no precision; there are fp32, tf32"),
        ({"names": ["X"], "tflops": {"fp32": 1, "mixed": 1}}, "'mixed' is no precision"),
        ({"names": ["X"], "tflops": {"bf16": 1}}, r"entry 0 \(X\) says no TFLOPS of fp32"),
        ({"names": ["X"], "tflops": {"fp32": 0}}, "TFLOPS of fp32 must be above 0"),
    ],
)
def test_a_gpu_that_makes_no_sense_is_refused_in_one_sentence(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gpu_models_of([GpuModelEntry.model_validate(entry)])
