"""An API server in memory, for the embedded mode and for tests of components.

It keeps the rules that schedulers live by, as the real one does (the same tests run against both): resource versions
and preconditions, watch with history and 410, selectors, paged lists, Binding with uid and resourceVersion, graceful
deletion, Eviction within budgets, status apart from spec, owner references. It knows no accounts, no admission webhooks
and no schemas. Kubelets and controllers are separate (`libs.kube.sim.kubelet`, `libs.kube.sim.control`).

Every call lets other tasks run once before it takes effect and is then atomic.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from libs.kube.port import Answer, WatchBroken, WatchGone
from libs.kube.sim import podrules
from libs.kube.sim.answers import Refusal, bad_request, invalid, not_found, other_uid, success, unpatchable
from libs.kube.sim.patches import apply_operations, merge, strategic
from libs.kube.sim.reads import Reads
from libs.kube.sim.resources import Kind, Router, Target
from libs.kube.sim.store import Object, Place, Store

_encode = msgspec.json.encode
_NAMESPACES: Final = "/namespaces"
_MOST_TOKENS: Final = 256

#: Called before every request; an Answer it returns is given instead of serving. For faults in tests.
Intercept = Callable[[str, str, bytes | None], Awaitable[Answer | None]]


class EmbeddedCluster:
    """A `Kube`. `writes` counts served writes by "METHOD resource/subresource"."""

    def __init__(
        self,
        *,
        namespaces: tuple[str, ...] = ("default", "kube-system", "drystone-system"),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        bookmark_s: float = 30.0,
        keep: int = 50_000,
    ) -> None:
        self.store = Store(keep=keep)
        self.intercept: Intercept | None = None
        self.writes: Counter[str] = Counter()
        self._router = Router()
        self._now = now
        self._reads = Reads(self.store, bookmark_s)
        self._closed = False
        for name in namespaces:
            self.add_namespace(name)

    # --- for set-up and tests -------------------------------------------------------------------------------------

    def add_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        if self.store.get(Place(_NAMESPACES, "", name)) is None:
            item = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}
            self.store.put(Place(_NAMESPACES, "", name), self._born(item, name, ""))

    def register(self, kind: Kind) -> None:
        """Make one more resource known (a CRD)."""
        self._router.add(kind)

    def compact(self) -> None:
        """Forget history and break all watches: each finds its version too old when it comes again, if it lags."""
        self.store.compact()
        self.break_watches()

    def break_watches(self) -> None:
        self._reads.break_watches()

    async def close(self) -> None:
        self._closed = True
        self.break_watches()

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = 5.0,
    ) -> Answer:
        if self.intercept is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    instead = await self.intercept(method, path, body)
            except TimeoutError:
                return Answer(0, b"", unsure=True)
            if instead is not None:
                return instead
        await asyncio.sleep(0)
        return self.call_now(method, path, body, params=params, content_type=content_type)

    def call_now(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """The same, at once: for set-up and for parts of the simulation."""
        if self._closed:
            return Answer(0, b"", unsure=True)
        target = self._router.resolve(path)
        if target is None:
            return Answer(404, b"404 page not found\n")
        try:
            return self._serve(method, target, body, params or {}, content_type)
        except Refusal as refusal:
            return refusal.answer()

    def _serve(
        self, method: str, target: Target, body: bytes | None, params: Mapping[str, str], content_type: str
    ) -> Answer:
        if method == "GET":
            return self._reads.get(target) if target.name else self._reads.page(target, params)
        dry_run = params.get("dryRun") == "All"
        try:
            said: Any = msgspec.json.decode(body) if body else {}
        except msgspec.MsgspecError as error:
            raise bad_request(f"the body cannot be decoded: {error}") from None
        if not isinstance(said, dict) and method != "PATCH":
            raise bad_request("the body is no object")
        if method == "POST" and target.subresource == "binding":
            answer = self._bind(target, said, dry_run)
        elif method == "POST" and target.subresource == "eviction":
            answer = self._evict(target, said, dry_run)
        elif method == "POST" and not target.name:
            answer = self._create(target, said, dry_run)
        elif method == "PUT" and target.name:
            answer = self._update(target, said, dry_run)
        elif method == "PATCH" and target.name:
            answer = self._patch(target, said, content_type, dry_run)
        elif method == "DELETE" and target.name:
            answer = self._delete(target, said, dry_run)
        else:
            raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if not dry_run:
            tail = f"/{target.subresource}" if target.subresource else ""
            self.writes[f"{method} {target.kind.plural}{tail}"] += 1
        return answer

    def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        return self._reads.stream(partial(self._watched, path), params, silence_s)

    async def _watched(self, path: str) -> Target:
        if self.intercept is not None:
            instead = await self.intercept("WATCH", path, None)
            if instead is not None:
                raise (WatchGone if instead.status == 410 else WatchBroken)(f"answer {instead.status}")
        await asyncio.sleep(0)
        target = self._router.resolve(path)
        if target is None or self._closed:
            raise WatchBroken(f"{path}: 404" if target is None else "closed")
        return target

    # --- writes -----------------------------------------------------------------------------------------------------

    def _create(self, target: Target, item: Object, dry_run: bool) -> Answer:
        kind, meta = target.kind, dict(item.get("metadata") or {})
        self._check_kind(kind, item)
        name = meta.get("name") or (meta["generateName"] + uuid.uuid4().hex[:5] if meta.get("generateName") else "")
        if not name:
            raise invalid(kind.resource, "", "name: Required value: name or generateName is required")
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        namespace = target.namespace if kind.namespaced else ""
        if meta.get("namespace", namespace) != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if kind.namespaced and self.store.get(Place(_NAMESPACES, "", namespace)) is None:
            raise not_found(_NAMESPACES, namespace)
        place = Place(kind.resource, namespace, name)
        if self.store.get(place) is not None:
            raise Refusal(409, "AlreadyExists", f'{kind.plural} "{name}" already exists')
        born = self._born({**item, "metadata": meta}, name, namespace)
        if kind.plural == "pods":
            born = podrules.admit(self.store, born)
        elif kind.status:
            born.pop("status", None) if kind.plural != "nodes" else None
        if dry_run:
            return Answer(201, _encode(born))
        return Answer(201, self.store.put(place, born).raw)

    def _born(self, item: Object, name: str, namespace: str) -> Object:
        meta = {
            **item["metadata"],
            "name": name,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": self.stamp(),
            "generation": 1,
        }
        meta.pop("deletionTimestamp", None)
        if namespace:
            meta["namespace"] = namespace
        return {**item, "metadata": meta}

    def stamp(self, after_s: float = 0.0) -> str:
        return (self._now() + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _check_kind(self, kind: Kind, item: Object) -> None:
        if item.get("kind", kind.kind) != kind.kind or item.get("apiVersion", kind.api_version) != kind.api_version:
            said = f"{item.get('apiVersion')} {item.get('kind')}"
            raise bad_request(f"{said} cannot be handled as a {kind.kind} of {kind.api_version}")
        item.setdefault("kind", kind.kind)
        item.setdefault("apiVersion", kind.api_version)

    def _update(self, target: Target, item: Object, dry_run: bool) -> Answer:
        self._check_kind(target.kind, item)
        meta = item.get("metadata") or {}
        if meta.get("name", target.name) != target.name:
            raise bad_request("the name of the object does not match the name on the URL")
        return self._replace(target, {**item, "metadata": meta}, dry_run)

    def _patch(self, target: Target, patch: Any, content_type: str, dry_run: bool) -> Answer:
        old, kind = self._existing(target).object, target.kind
        custom = "." in kind.group and not kind.group.endswith(".k8s.io")
        if content_type == "application/json-patch+json":
            try:
                merged = apply_operations(old, patch)
            except (ValueError, AttributeError, TypeError):
                raise unpatchable() from None
        elif not isinstance(patch, dict):
            raise bad_request("the body is no object")
        elif content_type == "application/merge-patch+json":
            merged = merge(old, patch)
        elif content_type == "application/strategic-merge-patch+json" and not custom:
            merged = strategic(old, patch)
        else:
            why = f"the body of the request was in an unknown format: {content_type}"
            raise Refusal(415, "UnsupportedMediaType", why)
        meta = merged.get("metadata") or {}
        if custom and target.subresource == "status":
            # Metadata of a status write is dropped, but for the version.
            meta = {**old["metadata"], "resourceVersion": meta.get("resourceVersion")}
        elif meta.get("uid") != old["metadata"]["uid"]:
            raise other_uid(kind.resource, target.name, str(meta.get("uid")))
        return self._replace(target, {**merged, "metadata": meta}, dry_run)

    def _existing(self, target: Target) -> Any:
        found = self.store.get(target.place)
        if found is None:
            raise not_found(target.kind.resource, target.name)
        return found

    def _replace(self, target: Target, new: Object, dry_run: bool) -> Answer:
        """Common end of PUT and PATCH: preconditions, what may change where, no write where nothing changes."""
        found, kind = self._existing(target), target.kind
        old, said = found.object, new["metadata"]
        podrules.check_preconditions(kind.resource, old, said.get("uid"), said.get("resourceVersion"))
        system = (
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        )
        meta = {**said, **{k: old["metadata"][k] for k in system if k in old["metadata"]}}
        if target.subresource == "status":
            new = {
                **old,
                "status": new.get("status", {}),
                "metadata": meta if kind.plural == "pods" else old["metadata"],
            }
        elif target.subresource:
            raise not_found(kind.resource, f"{target.name}/{target.subresource}")
        else:
            new = {**new, "metadata": meta}
            if kind.status:
                new.pop("status", None)
                if "status" in old:
                    new["status"] = old["status"]
            if kind.plural == "pods":
                podrules.check_update(old, new)
            if new.get("spec") != old.get("spec"):
                new["metadata"] = {**meta, "generation": old["metadata"].get("generation", 1) + 1}
        if new == old:
            return Answer(200, found.raw)
        if dry_run:
            return Answer(200, _encode(new))
        place = target.place
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers") and kind.plural != "pods":
            self.store.put(place, new)
            return Answer(200, _encode(self.store.remove(place)))
        return Answer(200, self.store.put(place, new).raw)

    def _bind(self, target: Target, binding: Object, dry_run: bool) -> Answer:
        if target.kind.plural != "pods":
            raise not_found(target.kind.resource, target.name)
        if not dry_run:
            podrules.bind(self.store, target.place, binding, self.stamp())
        return success(201)

    def _evict(self, target: Target, eviction: Object, dry_run: bool) -> Answer:
        if target.kind.plural != "pods":
            raise not_found(target.kind.resource, target.name)
        options = eviction.get("deleteOptions") or {}
        if (eviction.get("metadata") or {}).get("name", target.name) != target.name:
            raise bad_request("name in URL does not match name in Eviction object")
        dry_run = dry_run or options.get("dryRun") == ["All"]
        pod = self._existing(target).object
        conditions = options.get("preconditions") or {}
        podrules.check_preconditions(podrules.PODS, pod, conditions.get("uid"), conditions.get("resourceVersion"))
        podrules.guard(self.store, pod, dry_run)
        self._delete(target, options, dry_run)
        return success(201)

    def _delete(self, target: Target, options: Object, dry_run: bool) -> Answer:
        item, kind = self._existing(target).object, target.kind
        conditions = options.get("preconditions") or {}
        podrules.check_preconditions(kind.resource, item, conditions.get("uid"), conditions.get("resourceVersion"))
        if dry_run:
            return Answer(200, _encode(item))
        return self.end(target.place, options.get("gracePeriodSeconds"))

    def end(self, place: Place, asked_grace: int | None) -> Answer:
        """Delete now, or mark as being deleted where somebody still has to finish (a kubelet, a finalizer)."""
        found = self.store.get(place)
        if found is None:
            raise not_found(place.resource, place.name)
        item = found.object
        meta = item["metadata"]
        grace = podrules.grace_of(item, asked_grace) if place.resource == podrules.PODS else 0
        if grace == 0 and not meta.get("finalizers"):
            return Answer(200, _encode(self.store.remove(place)))
        if "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds", 0) <= grace:
            return Answer(200, found.raw)
        marked = {**meta, "deletionTimestamp": self.stamp(grace), "deletionGracePeriodSeconds": grace}
        return Answer(200, self.store.put(place, {**item, "metadata": marked}).raw)
