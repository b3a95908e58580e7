"""A bar on standard error while runs go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libs.sim.pack import PackRun
    from libs.sim.study import Study


def with_progress(study: Study, processes: int, title: str = "runs") -> dict[str, list[PackRun]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from libs.sim.study import run_study

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(title, total=len(study.policies) * len(study.seeds))
        return run_study(study, processes, lambda: progress.advance(bar))
