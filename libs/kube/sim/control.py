"""The controllers that the embedded cluster cannot do without: garbage collection by owner, and disruption budgets."""

from __future__ import annotations

import asyncio
from decimal import ROUND_CEILING

from libs.kube.embedded import EmbeddedCluster
from libs.kube.quantities import exact
from libs.kube.sim.podrules import PDBS, PODS, selects
from libs.kube.sim.store import Change, Object, Place


class Controllers:
    """Watches the store's changes and acts just after them. Made inside a running loop; works until `stop`."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._loop = asyncio.get_running_loop()
        #: owner uid -> places of what it owns
        self._owned: dict[str, set[Place]] = {}
        self._alive: set[str] = set()
        self._budgets: set[Place] = set()
        self._due = False
        self._orphans: set[Place] = set()
        for resource in self._store.resources():
            for place, stored in self._store.all(resource):
                self._index(place, stored.object)
        self._store.observers.append(self._changed)

    def stop(self) -> None:
        self._store.observers.remove(self._changed)

    def _changed(self, change: Change) -> None:
        place = change.place
        if change.new is None:
            uid = change.old["metadata"]["uid"] if change.old else ""
            self._alive.discard(uid)
            self._orphans |= self._owned.pop(uid, set())
            if change.old:
                for owner in change.old["metadata"].get("ownerReferences") or ():
                    self._owned.get(owner["uid"], set()).discard(place)
        elif change.old is None:
            self._index(place, change.new)
        if place.resource in (PODS, PDBS):
            item = change.new or change.old or {}
            for key, stored in self._store.unordered(PDBS).items():
                if key[0] == place.namespace and (place.resource == PDBS or selects(stored.object, item)):
                    self._budgets.add(Place(PDBS, *key))
        if (self._orphans or self._budgets) and not self._due:
            self._due = True
            self._loop.call_soon(self._act)

    def _index(self, place: Place, item: Object) -> None:
        self._alive.add(item["metadata"]["uid"])
        owners = item["metadata"].get("ownerReferences") or ()
        for owner in owners:
            self._owned.setdefault(owner["uid"], set()).add(place)
        if owners and not any(owner["uid"] in self._alive for owner in owners):
            self._orphans.add(place)

    def _act(self) -> None:
        orphans, self._orphans = self._orphans, set()
        for place in orphans:
            found = self._store.get(place)
            owners = (found.object["metadata"].get("ownerReferences") or ()) if found else ()
            if found and owners and not any(owner["uid"] in self._alive for owner in owners):
                self._cluster.end(place, None)
        budgets, self._budgets = self._budgets, set()
        for place in budgets:
            self._update(place)
        self._due = False
        if self._orphans or self._budgets:
            self._due = True
            self._loop.call_soon(self._act)

    def _update(self, place: Place) -> None:
        """The budget's status from the pods it selects, as they are now."""
        found = self._store.get(place)
        if found is None:
            return
        budget, spec = found.object, found.object.get("spec") or {}
        pods = [
            s.object
            for (namespace, _), s in self._store.unordered(PODS).items()
            if namespace == place.namespace and selects(budget, s.object) and not _ended(s.object)
        ]
        expected = len(pods)
        if "maxUnavailable" in spec:
            wanted = max(0, expected - _scaled(spec["maxUnavailable"], expected))
        else:
            wanted = _scaled(spec.get("minAvailable", 0), expected)
        healthy = sum(1 for pod in pods if _healthy(pod))
        status = {
            "currentHealthy": healthy,
            "desiredHealthy": wanted,
            "expectedPods": expected,
            "disruptionsAllowed": max(0, healthy - wanted) if expected else 0,
            "observedGeneration": budget["metadata"].get("generation", 1),
        }
        if budget.get("status") != status:
            self._store.put(place, {**budget, "status": status})


def _ended(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def _healthy(pod: Object) -> bool:
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def _scaled(value: int | str, total: int) -> int:
    """A number or a percentage, which is rounded up."""
    if isinstance(value, str) and value.endswith("%"):
        return int((exact(value[:-1]) * total / 100).to_integral_value(ROUND_CEILING))
    return int(value)
