"""What models of GPU compute, and how fast: read from `models.json` when it is first asked for, never while deciding.

Each entry names the data sheet it is from, its compute capability, its form (the SXM and PCIe versions of a model
differ), and for every precision it supports the dense peak in TFLOPS (TOPS for int8): tensor cores where they serve
that precision, without sparsity, and summed up in fp32 where a sheet gives both. Tensor cores came with capability 7.0
(fp16), 7.5 (int8), 8.0 (tf32, bf16) and 8.9 (fp8). Peaks are no promise of what a program reaches; only their ratios
are used.

`names` are values of the label `nvidia.com/gpu.product`, and short names that clusters use; capitals do not matter. A
short name that several versions share means the SXM one. Models that no entry names are unknown, which is not the same
as unsupported: nothing is refused for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from libs.domain.precision import PRECISIONS, Precision

#: What a precision is computed in where it is not supported. fp32 always is.
_INSTEAD: Final[Mapping[str, str]] = {
    "fp8": "mixed",
    "int8": "mixed",
    "mixed": "fp32",
    "bf16": "fp32",
    "fp16": "fp32",
    "tf32": "fp32",
}
_MOST_TFLOPS: Final = 1e7


class GpuModel(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`tflops` by precision; one that is not there is not supported. All but names and TFLOPS is for people: `checked`
    says which figures were compared with the vendor's as given at `against`; empty: entered and not compared."""

    names: tuple[str, ...]
    tflops: dict[str, float]
    title: str = ""
    memory_mib: int = 0
    capability: str = ""
    form: str = ""
    source: str = ""
    checked: str = ""
    against: str = ""

    @property
    def words(self) -> str:
        return self.title or self.names[0]


class GpuTable:
    """Entries by name; of two with one name the later counts, so that an operator's stand before ours."""

    def __init__(self, models: Iterable[GpuModel]) -> None:
        self.models = tuple(models)
        self._by_name = {name.casefold(): model for model in self.models for name in model.names}

    def model(self, name: str) -> GpuModel | None:
        return self._by_name.get(name.removesuffix("-SHARED").casefold())

    def supports(self, name: str, precision: str) -> bool | None:
        """None where the model is unknown."""
        model = self.model(name)
        return None if model is None else _supports(model, precision)

    def gflops(self, name: str, precision: str) -> int | None:
        """How fast the model computes that, or what stands in for it where it is not supported; None: unknown."""
        model = self.model(name)
        if model is None:
            return None
        while precision and not _supports(model, precision):
            precision = _INSTEAD.get(precision, "")
        if precision == "mixed":
            return round(1000 * max(model.tflops.get("bf16", 0.0), model.tflops.get("fp16", 0.0)))
        return round(1000 * model.tflops.get(precision, 0.0))

    def extended(self, models: Sequence[GpuModel]) -> GpuTable:
        return GpuTable((*self.models, *models)) if models else self


def _supports(model: GpuModel, precision: str) -> bool:
    if precision == "mixed":
        return "bf16" in model.tflops or "fp16" in model.tflops
    return precision in model.tflops


class Allowed:
    """Names of GPU models that will do: those that are named (any where none is), without those that are known not to
    support the precision."""

    __slots__ = ("_known", "_names", "_precision", "_table")

    def __init__(self, names: frozenset[str], precision: Precision, table: GpuTable) -> None:
        self._names = names
        self._precision = precision
        self._table = table
        self._known: dict[str, bool] = {}

    def supporting(self) -> list[str]:
        """Titles of the models of the table that will do."""
        return [
            model.words
            for model in self._table.models
            if _supports(model, self._precision)
            and any(name in self and self._table.model(name) is model for name in model.names)
        ]

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        found = self._known.get(name)
        if found is None:
            named = not self._names or name in self._names
            found = self._known[name] = named and self._table.supports(name, self._precision) is not False
        return found


@cache
def default_table() -> GpuTable:
    raw = resources.files(__package__).joinpath("models.json").read_bytes()
    return GpuTable(msgspec.json.decode(raw, type=tuple[GpuModel, ...]))


def checked(models: Sequence[GpuModel]) -> None:
    """Raises ValueError with one sentence where an entry makes no sense."""
    for number, model in enumerate(models):
        where = f"entry {number}" + (f" ({model.words[:40]})" if model.names or model.title else "")
        if not model.names or not all(name.strip() for name in model.names):
            raise ValueError(f"{where} has no names, or an empty one")
        unknown = sorted(set(model.tflops) - set(PRECISIONS) | set(model.tflops) & {"mixed"})
        if unknown:
            known = ", ".join(name for name in PRECISIONS if name != "mixed")
            raise ValueError(f"{where}: {unknown[0]!r} is no precision; there are {known}")
        if "fp32" not in model.tflops:
            raise ValueError(f"{where} says no TFLOPS of fp32, which every GPU computes")
        wrong = [p for p, tflops in model.tflops.items() if not 0 < tflops <= _MOST_TFLOPS]
        if wrong:
            raise ValueError(f"{where}: TFLOPS of {wrong[0]} must be above 0 and at most {_MOST_TFLOPS:g}")
