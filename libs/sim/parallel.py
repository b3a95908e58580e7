"""Runs in processes of their own, one a core, with results in the order they were asked for."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

R = TypeVar("R")


def in_order(
    run: Callable[..., R],
    work: Sequence[tuple[Any, ...]],
    processes: int = 0,
    done: Callable[[int], None] | None = None,
) -> list[R]:
    """`run(*arguments)` for each of `work`; `done` is told the index of each that is ready. With one process (0: one
    per core, at most one per run) everything happens in this one; otherwise `run` and its arguments have to be
    picklable. An exception of a run is raised here."""
    processes = min(processes or os.cpu_count() or 1, len(work))
    results: dict[int, R] = {}
    if processes <= 1:
        for index, arguments in enumerate(work):
            results[index] = run(*arguments)
            if done is not None:
                done(index)
    else:
        # Spawned, not forked: the parent may have threads.
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(run, *arguments): index for index, arguments in enumerate(work)}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                if done is not None:
                    done(futures[future])
    return [results[index] for index in range(len(work))]
