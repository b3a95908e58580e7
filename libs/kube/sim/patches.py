"""Merge patch (RFC 7386), JSON patch (RFC 6902, on objects) and the strategic merge of Kubernetes.

Nothing that is given is changed in place.
"""

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


def apply_operations(target: Object, operations: list[Object]) -> Object:
    """A JSON patch of add, replace, remove and test on fields of objects. Raises ValueError where it does not apply."""
    for operation in operations:
        steps = [s.replace("~1", "/").replace("~0", "~") for s in str(operation.get("path", "")).split("/")[1:]]
        if not steps:
            raise ValueError("an operation on the whole object")
        target = _operate(target, steps, operation)
    return target


def _operate(target: Any, steps: list[str], operation: Object) -> Any:
    kind, key = operation.get("op"), steps[0]
    if not isinstance(target, dict) or (key not in target and (len(steps) > 1 or kind != "add")):
        raise ValueError(f"{operation.get('path')} does not exist")
    if len(steps) > 1:
        return {**target, key: _operate(target[key], steps[1:], operation)}
    if kind == "test":
        if target[key] != operation.get("value"):
            raise ValueError(f"{operation.get('path')} differs")
        return target
    if kind in ("add", "replace"):
        return {**target, key: operation.get("value")}
    if kind == "remove":
        return {k: v for k, v in target.items() if k != key}
    raise ValueError(f"operation {kind!r} is not served here")
