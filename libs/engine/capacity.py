"""What the cluster has of GPU models that queues speak of, for shares by model."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from libs.domain.resources import WHOLE
from libs.engine.snapshot import Snapshot


class Capacity:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._at: tuple[object, ...] = ()
        self._found: dict[str, int] = {}

    def by_model(self, models: Set[str]) -> dict[str, int]:
        """Milli GPUs of all nodes, whatever state they are in, of each of these models. Counted anew when nodes have
        changed."""
        snapshot = self._snapshot
        columns = snapshot.columns()
        at = models, snapshot.shape, len(snapshot.spec_changes), len(snapshot.states)
        if at != self._at:
            counts = np.bincount(columns.model[columns.exists], minlength=snapshot.model_count)
            self._found = {name: int(counts[snapshot.model_codes((name,))].sum()) * WHOLE for name in models}
            self._at = at
        return self._found
