"""Field and label selectors of list and watch. An expression that the API server would refuse raises ValueError."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

Object = dict[str, Any]
Match = Callable[[Object], bool]

_POD_FIELDS: Final = (
    "spec.nodeName",
    "spec.schedulerName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "status.phase",
)
_LABEL_TERM: Final = re.compile(
    r"^\s*(?:(?P<absent>!)\s*(?P<akey>[\w./-]+)|(?P<key>[\w./-]+)"
    r"(?:\s*(?P<op>==|!=|=|\bin\b|\bnotin\b)\s*(?P<value>\([^)]*\)|[\w.-]*))?)\s*$"
)


def everything(_: Object) -> bool:
    return True


def matcher(resource: str, fields: str, labels: str) -> Match:
    tests = [*_field_tests(resource, fields), *_label_tests(labels)]
    if not tests:
        return everything
    if len(tests) == 1:
        return tests[0]
    return lambda item: all(test(item) for test in tests)


def labels_match(wanted: dict[str, str], item: Object) -> bool:
    have = item["metadata"].get("labels") or {}
    return all(have.get(k) == v for k, v in wanted.items())


def _field_tests(resource: str, text: str) -> list[Match]:
    tests: list[Match] = []
    for term in filter(None, text.split(",")):
        negated = "!=" in term
        name, _, value = term.partition("!=" if negated else "==" if "==" in term else "=")
        allowed = ("metadata.name", "metadata.namespace", *(_POD_FIELDS if resource == "pods" else ()))
        if name not in allowed:
            raise ValueError(f"field label not supported: {name}")
        tests.append(_field_test(name.split("."), value, negated))
    return tests


def _field_test(steps: list[str], value: str, negated: bool) -> Match:
    first, second = steps

    def test(item: Object) -> bool:
        return (str(item.get(first, {}).get(second) or "") == value) is not negated

    return test


def _label_tests(text: str) -> list[Match]:
    tests: list[Match] = []
    for term in filter(None, re.split(r",(?![^(]*\))", text)):
        found = _LABEL_TERM.match(term)
        if found is None:
            raise ValueError(f"unable to parse requirement: {term}")
        tests.append(_label_test(found))
    return tests


def _label_test(found: re.Match[str]) -> Match:
    key, op, value = found["akey"] or found["key"], found["op"], found["value"] or ""
    values = {v.strip() for v in value.strip("()").split(",")} if op in ("in", "notin") else {value}

    def test(item: Object) -> bool:
        have = (item["metadata"].get("labels") or {}).get(key)
        if found["absent"]:
            return have is None
        if op is None:
            return have is not None
        if op in ("!=", "notin"):
            return have not in values
        return have in values

    return test
