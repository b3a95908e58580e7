"""What a pod may ask of its node and of the pods beside it: tolerations, affinities, spread."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tools.differential.words import APPS, KEYS, RACKS, TEAMS, TIERS, ZONES, Object


class Wishes:
    """`nodes` and `spaces` are names that terms may name."""

    def __init__(self, rng: random.Random, nodes: Sequence[str], spaces: Sequence[str]) -> None:
        self._rng = rng
        self._names = nodes
        self._spaces = spaces

    def _odds(self, of: float) -> bool:
        return self._rng.random() < of

    def toleration(self) -> Object:
        return self._rng.choice(
            [
                {"operator": "Exists"},
                {"key": "dedicated", "operator": "Exists"},
                {"key": "dedicated", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
                {"key": "dedicated", "value": "b"},
                {"key": "level", "value": "5", "effect": "NoSchedule"},
                {"key": "level", "value": "6"},
                {"operator": "Exists", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            ]
        )

    def _node_expression(self) -> Object:
        rng = self._rng
        key = rng.choice(["disk", "gen", "rack", KEYS[0]])
        if key == "gen" and self._odds(0.7):
            return {"key": key, "operator": rng.choice(["Gt", "Lt"]), "values": [rng.choice(["0", "3", "-5"])]}
        operator = rng.choice(["In", "NotIn", "Exists", "DoesNotExist"])
        made: Object = {"key": key, "operator": operator}
        if operator in ("In", "NotIn"):
            values = {"disk": ["ssd", "hdd", ""], "gen": ["1", "3"], "rack": [*RACKS], KEYS[0]: [*ZONES]}[key]
            made["values"] = rng.sample(values, rng.randint(1, len(values)))
        return made

    def _node_term(self) -> Object:
        term: Object = {}
        if self._odds(0.85):
            term["matchExpressions"] = [self._node_expression() for _ in range(self._rng.choice([1, 1, 2]))]
        if self._odds(0.2):
            field_ = {"key": "metadata.name", "values": [self._rng.choice(self._names)]}
            term["matchFields"] = [{**field_, "operator": self._rng.choice(["In", "NotIn"])}]
        return term

    def node_affinity(self) -> Object:
        made: Object = {}
        if self._odds(0.9):
            terms = [self._node_term() for _ in range(self._rng.choice([1, 1, 2, 3]))]
            made["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        if self._odds(0.2):
            preference = {"matchExpressions": [self._node_expression()]}
            made["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 3, "preference": preference}]
        return made

    def _selector(self) -> Object | None:
        rng = self._rng
        if self._odds(0.05):
            return None
        made: Object = {}
        if self._odds(0.6):
            made["matchLabels"] = {"app": rng.choice(APPS)}
        if self._odds(0.5):
            operator = rng.choice(["In", "NotIn", "Exists", "DoesNotExist"])
            expression: Object = {"key": rng.choice(["app", "tier"]), "operator": operator}
            if operator in ("In", "NotIn"):
                values = APPS if expression["key"] == "app" else TIERS
                expression["values"] = rng.sample(values, rng.randint(1, 2))
            made["matchExpressions"] = [expression]
        return made

    def _pod_term(self) -> Object:
        rng = self._rng
        term: Object = {"topologyKey": rng.choice(KEYS)}
        selector = self._selector()
        if selector is not None:
            term["labelSelector"] = selector
            if self._odds(0.12):
                term[rng.choice(["matchLabelKeys", "mismatchLabelKeys"])] = ["color"]
        if self._odds(0.25):
            term["namespaces"] = rng.sample(self._spaces, rng.randint(1, 2))
        if self._odds(0.25):
            term["namespaceSelector"] = rng.choice([{}, {"matchLabels": {"team": rng.choice(TEAMS)}}])
        return term

    def pod_affinity(self) -> Object:
        terms = [self._pod_term() for _ in range(self._rng.choice([1, 1, 2]))]
        made: Object = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        if self._odds(0.15):
            made["preferredDuringSchedulingIgnoredDuringExecution"] = [
                {"weight": 5, "podAffinityTerm": {"topologyKey": KEYS[2], "labelSelector": {}}}
            ]
        return made

    def spread(self, key: str) -> Object:
        rng = self._rng
        made: Object = {
            "topologyKey": key,
            "maxSkew": rng.choice([1, 1, 2, 3]),
            "whenUnsatisfiable": "DoNotSchedule" if self._odds(0.85) else "ScheduleAnyway",
        }
        selector = self._selector()
        if selector is not None:
            made["labelSelector"] = selector
            if self._odds(0.15):
                made["matchLabelKeys"] = ["color"]
        if made["whenUnsatisfiable"] == "DoNotSchedule" and self._odds(0.3):
            made["minDomains"] = rng.choice([1, 2, 3, 5])
        if self._odds(0.3):
            made["nodeAffinityPolicy"] = rng.choice(["Honor", "Ignore"])
        if self._odds(0.4):
            made["nodeTaintsPolicy"] = rng.choice(["Honor", "Ignore"])
        return made
