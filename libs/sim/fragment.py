"""The fragment measure F of the FGD paper over a whole cluster, kept up with every placement.

F of a node is the idle GPU that a task drawn from the typical mix could not use there, in the mean; CPU-only tasks
count all idle GPU as unusable, so an empty cluster has F above 0. The measure is the paper's, by the mix of the whole
list, cut at 95 %; it judges, and no policy but FGD sees it.
"""

from __future__ import annotations

from libs.domain.nodes import Node
from libs.domain.resources import Charge, Request
from libs.engine.devices import NodeState
from libs.engine.mix import ONE, TypicalMix
from libs.engine.policies.fgd import typical
from libs.engine.policies.kinds import Kinds
from libs.engine.policies.usable import Usable
from libs.engine.snapshot import Snapshot


class Fragments:
    """`total` is F in milli GPU times `one`."""

    one = ONE

    def __init__(self, nodes: list[Node], tasks: tuple[tuple[Request, int], ...]) -> None:
        self._snapshot = Snapshot()
        for node in nodes:
            self._snapshot.node_seen(node)
        shares = typical(TypicalMix(tasks).shares())
        self._usable = Usable(Kinds(self._snapshot, [share.shape for share in shares]), shares)
        self._known: dict[str, int] = {}
        self.total = 0
        for name in self._snapshot.rows:
            self._update(name)

    def _update(self, name: str) -> None:
        state = self._snapshot.state(name)
        if state is None:
            raise LookupError(f"no node {name}")
        now = self._of(state)
        self.total += now - self._known.get(name, 0)
        self._known[name] = now

    def _of(self, state: NodeState) -> int:
        return state.gpu_free * ONE - self._usable.of(state)

    def take(self, node: str, charge: Charge) -> None:
        self._snapshot.take(self._snapshot.rows[node], charge)
        self._update(node)
