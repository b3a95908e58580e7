"""What the binder knows of nodes: the present facts, and each node's recent past by digest.

A plan names the digest it was decided against. Keeping the facts behind the last few digests of a node lets the
re-check ask what was lost since, instead of refusing every plan that an irrelevant change overtook.
"""

from __future__ import annotations

from libs.contracts.events import NodeFact
from libs.domain.nodes import Node, newer
from libs.domain.plans import Assignment
from services.binder import decide

_PAST = 3
_MOST_GONE = 1024


class NodeFacts:
    __slots__ = ("_gone", "_now", "_past", "_term")

    def __init__(self) -> None:
        self._gone: dict[str, str] = {}
        self._now: dict[str, Node] = {}
        self._past: dict[str, dict[str, Node]] = {}
        self._term: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._now)

    def seen(self, fact: NodeFact) -> bool:
        """Take a fact in; False where it is older than what is known. A lower term is a leader that was replaced."""
        node = fact.node
        known = self._now.get(node.name)
        if fact.term < self._term.get(node.name, 0):
            return False
        if known is not None and fact.term == self._term[node.name] and newer(known.version, node.version):
            return False
        self._term[node.name] = fact.term
        self._now[node.name] = node
        if known is not None and known.spec != node.spec:
            past = self._past.setdefault(node.name, {})
            past.pop(known.spec, None)
            past[known.spec] = known
            while len(past) > _PAST:
                del past[next(iter(past))]
        return True

    def gone(self, name: str) -> None:
        known = self._now.pop(name, None)
        if known is not None:
            self._gone[name] = known.spec
            while len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]
        self._past.pop(name, None)
        self._term.pop(name, None)

    def behind(self, name: str, spec: str) -> bool:
        """Whether a decision was made against a state of the node that was never seen here. Placement and binder read
        the same topic each at its own pace: most likely it is about to arrive."""
        known = self._now.get(name)
        if known is None:
            return self._gone.get(name) != spec
        return known.spec != spec and spec not in self._past.get(name, {})

    def now(self, name: str) -> Node | None:
        return self._now.get(name)

    def then(self, name: str, spec: str) -> Node | None:
        return self._past.get(name, {}).get(spec)

    def objection(self, assignment: Assignment) -> str:
        """Why its node no longer admits the assignment, empty if it does."""
        name, spec = assignment.node, assignment.node_spec
        now = self._now.get(name)
        if now is not None and now.spec == spec:
            return ""
        return decide.objection(assignment, now, self.then(name, spec))
