"""Used room, as the ledger tells it: by node and by queue, each with the revision it is true at."""

from __future__ import annotations

import msgspec

from libs.domain.resources import Charge


class NodeUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Used room of one node as of `revision`; the higher revision wins. `gpus` has (milli, MiB) used per index, in
    index order; `blind` counts foreign whole GPUs of unknown index; `disputed` lists closed indices. Everything
    includes claims and earmarks.

    `earmarked` is the part of the above that waits for one beneficiary, by job key: placement may give it to that job.
    """

    node: str
    revision: int
    cpu: int = 0
    mem: int = 0
    pods: int = 0
    gpus: tuple[tuple[int, int], ...] = ()
    blind: int = 0
    disputed: tuple[int, ...] = ()
    earmarked: dict[str, tuple[Charge, ...]] = {}
    gone: bool = False


class QueueUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Used, claimed and earmarked by a queue and everything below it: milli GPUs, milli cores, MiB, and milli GPUs by
    model, as far as the nodes declare one."""

    path: str
    revision: int
    gpu_milli: int = 0
    cpu: int = 0
    mem: int = 0
    models: dict[str, int] = {}
