"""Merge patch (RFC 7386) and the strategic merge of Kubernetes, without mutating what they are given."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

#: Lists that a strategic patch merges by a key of their items; other lists are replaced.
_MERGE_KEYS: Final = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "addresses": "type",
    "ownerReferences": "uid",
}
#: Lists of plain values that are united.
_UNITED: Final = frozenset({"finalizers"})


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged: Object = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def strategic(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged: Object = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            if key in _MERGE_KEYS:
                merged[key] = _merge_items(merged[key], value, _MERGE_KEYS[key])
            elif key in _UNITED:
                merged[key] = [*merged[key], *(v for v in value if v not in merged[key])]
            else:
                merged[key] = value
        else:
            merged[key] = strategic(merged.get(key), value)
    return merged


def _merge_items(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    merged = list(target)
    places = {item.get(key): i for i, item in enumerate(merged)}
    for item in patch:
        name = item.get(key)
        if name in places:
            merged[places[name]] = strategic(merged[places[name]], item)
        else:
            places[name] = len(merged)
            merged.append(strategic({}, item))
    return merged
