"""A tenant's place in the tree of queues. Spine form: limits; shares and weights come on top."""

from __future__ import annotations

import msgspec


class Queue(msgspec.Struct, frozen=True, omit_defaults=True):
    """`path` is the queue's name preceded by its ancestors, "research/vision". A limit of None means none.

    `gpu_milli`, `cpu` (milli), `mem` (MiB) bound used + claimed + earmarked + request, request included.
    """

    path: str
    gpu_milli: int | None = None
    cpu: int | None = None
    mem: int | None = None
    namespaces: tuple[str, ...] = ()
    version: str = ""


def ancestors(path: str) -> list[str]:
    """The queue and everything above it: "a/b/c" -> ["a/b/c", "a/b", "a"]."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
