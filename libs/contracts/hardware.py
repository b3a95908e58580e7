"""What operators tell of their hardware, as settings (JSON): levels of topology, and GPUs that our table does not know.

Checked at the edge; what is wrong is said in one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from libs.domain.topology import LEVELS, Level
from libs.engine.precision.table import GpuModel, checked

_LABEL = r"^([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class TopologyLevel(_Model):
    """A kind of domain, said by a node label. `unique`: the label's value alone names the domain; else it does within a
    domain of the level before."""

    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,30}[a-z0-9])?$")]
    label: Annotated[str, Field(max_length=317, pattern=_LABEL)]
    unique: bool = False


def default_levels() -> tuple[TopologyLevel, ...]:
    return tuple(TopologyLevel(name=level.name, label=level.label, unique=level.unique) for level in LEVELS)


def levels_of(said: Sequence[TopologyLevel]) -> tuple[Level, ...]:
    """Raises ValueError with one sentence where two levels are one."""
    for what in ("name", "label"):
        values = [getattr(level, what) for level in said]
        twice = sorted(value for value in set(values) if values.count(value) > 1)
        if twice:
            raise ValueError(f"two levels have the {what} {twice[0]!r}")
    return tuple(Level(level.name, level.label, level.unique) for level in said)


class GpuModelEntry(_Model):
    """An entry of the table of GPUs (`libs/engine/precision/models.json`): names as in the label
    `nvidia.com/gpu.product`, dense TFLOPS by precision. An entry of ours with one of these names counts no more."""

    names: tuple[Annotated[str, Field(max_length=128)], ...]
    tflops: dict[str, float]
    title: Annotated[str, Field(max_length=64)] = ""
    memoryMib: Annotated[int, Field(ge=0)] = 0
    capability: Annotated[str, Field(max_length=8)] = ""
    form: Annotated[str, Field(max_length=16)] = ""
    source: Annotated[str, Field(max_length=256)] = ""


def gpu_models_of(entries: Sequence[GpuModelEntry]) -> tuple[GpuModel, ...]:
    """Raises ValueError with one sentence where an entry makes no sense."""
    found = tuple(
        GpuModel(said.names, dict(said.tflops), said.title, said.memoryMib, said.capability, said.form, said.source)
        for said in entries
    )
    checked(found)
    return found
