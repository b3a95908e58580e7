"""Disruption budgets as `drystone.cluster` tells them."""

from __future__ import annotations

from collections.abc import Sequence

from libs.contracts.events import PdbFact
from libs.domain.nodes import newer


class Budgets:
    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, PdbFact]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_namespace.values()))

    def seen(self, fact: PdbFact) -> None:
        """A lower term is a leader that was replaced; within a term the greater version wins."""
        known = self._by_namespace.get(fact.namespace, {}).get(fact.name)
        if known is not None and (
            fact.term < known.term or (fact.term == known.term and newer(known.version, fact.version))
        ):
            return
        self._by_namespace.setdefault(fact.namespace, {})[fact.name] = fact

    def gone(self, namespace: str, name: str) -> None:
        self._by_namespace.get(namespace, {}).pop(name, None)

    def of(self, namespace: str) -> Sequence[PdbFact]:
        return list(self._by_namespace.get(namespace, {}).values())

    def current(self, budget: PdbFact) -> PdbFact:
        """The same budget as it stands now."""
        return self._by_namespace.get(budget.namespace, {}).get(budget.name, budget)
