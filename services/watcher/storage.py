"""Volume claims with the volumes and classes behind them: three resources that change apart from each other, said as
one fact per claim; and how many volumes each node attaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from libs.contracts.events import AttachFact, ClaimFact, ClusterFact
from libs.kube import volumes
from services.watcher.changes import Changes

Place = tuple[str, str]


class Storage:
    """Each resource has one way in: (kind of event, raw object), which returns the object's identity."""

    def __init__(self, term: int, changes: Callable[[], Changes]) -> None:
        self.claims: dict[Place, volumes.ClaimObject] = {}
        self.volumes: dict[str, volumes.VolumeObject] = {}
        self.classes: dict[str, volumes.ClassObject] = {}
        self.attaching: dict[str, AttachFact] = {}
        self._said: dict[Place, ClaimFact] = {}
        self._term = term
        self._changes = changes

    def claim(self, kind: str, raw: bytes) -> Place:
        seen = volumes.claim_decoder.decode(raw)
        place = (seen.metadata.namespace, seen.metadata.name)
        if kind == "DELETED":
            self.claim_gone(place)
        else:
            self.claims[place] = seen
            self._say(place)
        return place

    def claim_gone(self, place: Place) -> None:
        self.claims.pop(place, None)
        if self._said.pop(place, None) is not None:
            self._changes().facts[_key(place)] = None

    def volume(self, kind: str, raw: bytes) -> str:
        seen = volumes.volume_decoder.decode(raw)
        name = seen.metadata.name
        if kind == "DELETED":
            self.volume_gone(name)
            return name
        old = self.volumes.get(name)
        self.volumes[name] = seen
        if old is None or (old.spec, old.metadata.labels) != (seen.spec, seen.metadata.labels):
            self._say_all(place for place, claim in self.claims.items() if claim.spec.volume_name == name)
        return name

    def volume_gone(self, name: str) -> None:
        if self.volumes.pop(name, None) is not None:
            self._say_all(place for place, claim in self.claims.items() if claim.spec.volume_name == name)

    def storage_class(self, kind: str, raw: bytes) -> str:
        seen = volumes.class_decoder.decode(raw)
        name = seen.metadata.name
        if kind == "DELETED":
            self.storage_class_gone(name)
        else:
            self.classes[name] = seen
            self._say_all(place for place, claim in self.claims.items() if volumes.class_of(claim) == name)
        return name

    def storage_class_gone(self, name: str) -> None:
        if self.classes.pop(name, None) is not None:
            self._say_all(place for place, claim in self.claims.items() if volumes.class_of(claim) == name)

    def csi_node(self, kind: str, raw: bytes) -> str:
        seen = volumes.csi_node_decoder.decode(raw)
        name, limits = seen.metadata.name, seen.limits
        old = self.attaching.get(name)
        if kind == "DELETED" or not limits:
            self.csi_node_gone(name)
        elif old is None or old.limits != limits:
            fact = self.attaching[name] = AttachFact(name, limits, seen.metadata.resource_version, self._term)
            self._changes().say(fact)
        return name

    def csi_node_gone(self, name: str) -> None:
        if self.attaching.pop(name, None) is not None:
            self._changes().facts["attach/" + name] = None

    def fact(self, key: str) -> ClusterFact | None:
        kind, _, name = key.partition("/")
        if kind == "attach":
            return self.attaching.get(name)
        namespace, _, claim = name.partition("/")
        return self._said.get((namespace, claim))

    def fact_keys(self) -> set[str]:
        return {*map(_key, self._said), *("attach/" + name for name in self.attaching)}

    def _say_all(self, places: Iterable[Place]) -> None:
        for place in list(places):
            self._say(place)

    def _say(self, place: Place) -> None:
        seen = self.claims[place]
        claim = volumes.claim_of(
            seen, self.volumes.get(seen.spec.volume_name or ""), self.classes.get(volumes.class_of(seen))
        )
        old = self._said.get(place)
        if old is None or old.claim != claim:
            fact = self._said[place] = ClaimFact(claim, seen.metadata.resource_version, self._term)
            self._changes().say(fact)


def _key(place: Place) -> str:
    return f"claim/{place[0]}/{place[1]}"
