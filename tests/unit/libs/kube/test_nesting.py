"""Objects nested deeper than can be decoded are read without what lies that deep."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.kube import trainingjobs
from libs.kube.boundpods import _prepared
from libs.kube.nesting import DEEPEST, decoded, flat, readable
from libs.kube.objects import list_decoder
from libs.kube.port import Answer
from libs.kube.writes import list_all

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"', "\\\\", '[{"', "]}", '\\"']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=30,
)


def job(deep: str) -> bytes:
    spec = {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "2"}}}], "zz": "@"}
    said = {
        "metadata": {"name": "deep", "namespace": "team-a", "uid": "u", "resourceVersion": "7"},
        "spec": {"roles": [{"name": "worker", "replicas": 1, "template": {"spec": spec}}]},
    }
    return json.dumps(said).replace('"@"', deep).encode()


@given(values)
@settings(max_examples=200, deadline=None)
def test_what_is_not_deep_stays_as_it_is(value: Any) -> None:
    raw = json.dumps(value).encode()
    assert flat(raw) == readable(raw) == raw


@pytest.mark.parametrize("deep", ["[" * 9_000 + "]" * 9_000, '{"a":' * 9_000 + '"]}"' + "}" * 9_000])
def test_a_job_with_nine_thousand_levels_in_a_field_that_nobody_knows_is_read_and_its_pod_made(deep: str) -> None:
    raw = job(deep)
    view = trainingjobs.parse(raw)
    head, (task,) = trainingjobs.expand(view, 0)
    assert (head.key, task.request.cpu, task.unsupported) == ("job/team-a/deep", 2000, ())
    assert b"main" in _prepared(bytes(view.spec.roles[0].template)).spec
    assert trainingjobs.parse(readable(raw)) == view  # as a watch brings it


def test_what_follows_a_deep_part_is_kept() -> None:
    deep = "[" * 2_000 + "]" * 2_000
    said = json.loads(flat(f'{{"a": {deep}, "b": [1, {deep}, 2], "c": "]["}}'.encode()))
    assert (said["b"][0], said["b"][2], said["c"]) == (1, 2, "][")
    levels, inner = 0, said["a"]
    while inner:
        levels, inner = levels + 1, inner[0]
    assert levels == DEEPEST - 1


def test_text_that_ends_within_a_deep_part_is_no_object() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decoded(list_decoder, b'{"items":' + b"[" * 9_000)


async def test_one_deep_object_does_not_hide_the_others_of_a_list() -> None:
    class Server:
        async def call(self, *_: Any, **__: Any) -> Answer:
            deep, plain = job("[" * 9_000 + "]" * 9_000), job("1")
            return Answer(200, b'{"metadata":{"resourceVersion":"8"},"items":[%s,%s]}' % (deep, plain))

    listed = await list_all(Server(), "/x")  # type: ignore[arg-type]
    assert [trainingjobs.parse(item).name for item in listed.items] == ["deep", "deep"]
