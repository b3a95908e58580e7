"""How each watched resource enters the picture: a list is what is there, and the end of what was known and is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from libs.kube.grouping import POD_GROUPS
from libs.kube.objects import Meta, bare_decoder
from services.watcher.decide import Picture

K = TypeVar("K", bound=Hashable)
Event = Callable[[str, bytes], None]
Listed = Callable[[Sequence[bytes]], None]


def group_watch(project: str) -> str:
    """How the watch of a project's PodGroups is called."""
    return f"podgroups of {project}"


def handlers(picture: Picture) -> dict[str, tuple[Listed, Event]]:
    """(list, event) by resource, in the order in which a first list is worth having."""
    catalog, storage, pods = picture.catalog, picture.storage, picture.pods

    def guarded(event: Callable[[str, bytes], object]) -> Event:
        return lambda kind, raw: picture.guarded(event, kind, raw)

    def way(
        event: Callable[[str, bytes], object],
        known: Callable[[], Collection[K]],
        gone: Callable[[K], None],
        identity: Callable[[Meta], K],
    ) -> tuple[Listed, Event]:
        def listed(raws: Sequence[bytes]) -> None:
            present = picture.all_of(event, raws, identity)
            for one in set(known()) - present:
                gone(one)

        return listed, guarded(event)

    return {
        "priorityclasses": way(catalog.priority, lambda: catalog.priorities, catalog.priority_gone, _name),
        "queues": (picture.queue_list, guarded(picture.queue_event)),
        **{
            group_watch(project): way(
                partial(picture.group_event, project),
                lambda project=project: catalog.groups[project],  # type: ignore[misc]
                partial(catalog.group_gone, project),
                _place,
            )
            for project in POD_GROUPS
        },
        "namespaces": way(catalog.namespace, lambda: catalog.namespaces, catalog.namespace_gone, _name),
        "pdbs": way(catalog.pdb, lambda: catalog.pdbs, catalog.pdb_gone, lambda m: f"pdb/{m.namespace}/{m.name}"),
        "storageclasses": way(storage.storage_class, lambda: storage.classes, storage.storage_class_gone, _name),
        "volumes": way(storage.volume, lambda: storage.volumes, storage.volume_gone, _name),
        "claims": way(storage.claim, lambda: storage.claims, storage.claim_gone, _place),
        "csinodes": way(storage.csi_node, lambda: storage.attaching, storage.csi_node_gone, _name),
        "nodes": (picture.node_list, guarded(picture.node_event)),
        "pods": (lambda raws: _pods_are(picture, raws), guarded(pods.event)),
        "trainingjobs": (picture.job_list, guarded(picture.job_event)),
    }


def _pods_are(picture: Picture, raws: Sequence[bytes]) -> None:
    """Most pods of a list are as they were; whose version is known is not read again."""
    pods = picture.pods
    fresh: list[bytes] = []
    present: set[str] = set()
    for raw in raws:
        try:
            meta = bare_decoder.decode(raw).metadata
        except (msgspec.MsgspecError, RecursionError):
            fresh.append(raw)  # counted as what cannot be read
            continue
        present.add(meta.uid)
        if meta.resource_version != pods.version_of(meta.uid):
            fresh.append(raw)
    present |= picture.all_of(pods.event, fresh, lambda one: one.uid)
    for uid in pods.by_uid.keys() - present:
        pods.gone(uid)


def _name(meta: Meta) -> str:
    return meta.name


def _place(meta: Meta) -> tuple[str, str]:
    return meta.namespace, meta.name
