"""Kinds of arithmetic that a training job declares, since GPUs differ in which of them they are fast at."""

from __future__ import annotations

from typing import Final, Literal, TypeGuard, get_args

#: `mixed` is bf16 or fp16, whichever the device has, summed up in fp32. Empty: the job says nothing.
Precision = Literal["", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "mixed"]

PRECISIONS: Final[tuple[str, ...]] = get_args(Precision)[1:]


def is_precision(text: str) -> TypeGuard[Precision]:
    """Whether the text names one; the empty text does not."""
    return text in PRECISIONS
