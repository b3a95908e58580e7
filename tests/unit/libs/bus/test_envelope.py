"""The envelope against the CloudEvents SDK, and against headers that mean harm."""

import json

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.bus.envelope import MAX_HEADERS, Writer, read
from libs.bus.port import Outgoing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_the_sdk_reads_what_we_write() -> None:
    out = Outgoing("t", "k", b'{"n": 1}', "dev.drystone.x.v1", headers={"cause": "c7", "traceparent": PARENT}, id="i1")
    headers = Writer("drystone/placement").headers(out)
    assert ("traceparent", PARENT.encode()) in headers
    message = KafkaMessage(headers={k: v or b"" for k, v in headers}, key=b"k", value=out.value)
    event = from_kafka(message, JSONFormat(), CloudEvent)
    assert (event.get_id(), event.get_source(), event.get_type()) == ("i1", "drystone/placement", "dev.drystone.x.v1")
    assert event.get_extension("cause") == "c7"
    assert event.get_data() == {"n": 1}


@pytest.mark.parametrize("form", [to_binary, to_structured])
def test_we_read_what_the_sdk_writes(form: object) -> None:
    event = CloudEvent(
        {"id": "i2", "source": "/portal", "type": "job", "cause": "c8", "datacontenttype": "application/json"},
        {"gpus": 8},
    )
    message = form(event, JSONFormat())  # type: ignore[operator]
    got = read("t", 3, 9, message.key, message.value, list(message.headers.items()))
    assert (got.fault, got.id, got.source, got.type) == ("", "i2", "/portal", "job")
    assert got.headers["cause"] == "c8"
    assert json.loads(got.value or b"") == {"gpus": 8}
    assert (got.partition, got.offset) == (3, 9)


def test_a_tombstone_keeps_its_envelope() -> None:
    headers = Writer("s").headers(Outgoing("t", "pod/1", None, "x"))
    got = read("t", 0, 0, b"pod/1", None, headers)
    assert (got.value, got.type, got.key, got.fault) == (None, "x", "pod/1", "")


@pytest.mark.parametrize(
    ("headers", "value", "word"),
    [
        ([], b"{}", "no CloudEvents envelope"),
        ([("ce_specversion", b"0.3"), ("ce_id", b"1"), ("ce_source", b"s"), ("ce_type", b"t")], b"", "specversion"),
        ([("ce_specversion", b"1.0"), ("ce_id", b""), ("ce_source", b"s")], b"", "id, type"),
        ([("ce_id", b"\xff\xfe")], b"", "UTF-8"),
        ([("ce_id", b"x" * 9000)], b"", "header of more than"),
        ([(f"h{n}", b"") for n in range(MAX_HEADERS + 1)], b"", "headers"),
        ([("content-type", b"application/cloudevents+json")], b"not json", "cannot be read"),
        ([("content-type", b"application/cloudevents+json")], b"[" * 100_000, "cannot be read"),
        ([("content-type", b"application/cloudevents+json")], None, "without a value"),
        ([("content-type", b"application/cloudevents-batch+json")], b"[]", "batched"),
    ],
)
def test_a_bad_envelope_is_a_value_with_a_reason(headers: list, value: bytes | None, word: str) -> None:
    got = read("t", 0, 0, b"\xff", value, headers)
    assert got.type == ""
    assert word in got.fault


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=20) | st.sampled_from(["ce_id", "ce_type", "content-type"]),
                       st.none() | st.binary(max_size=40) | st.just(b"application/cloudevents+json")), max_size=8),
    st.none() | st.binary(max_size=60),
    st.none() | st.binary(max_size=10),
)  # fmt: skip
def test_nothing_that_arrives_raises(headers: list, value: bytes | None, key: bytes | None) -> None:
    got = read("t", 0, 0, key, value, headers)
    assert bool(got.type) != bool(got.fault)


@pytest.mark.parametrize("name", ["Cause", "ce_cause", "id", "", "a-b"])
def test_an_attribute_that_cloudevents_does_not_allow_is_a_programming_error(name: str) -> None:
    with pytest.raises(ValueError, match="attribute"):
        Writer("s").headers(Outgoing("t", "k", b"", "x", headers={name: "v"}))


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize(
    ("said", "passed_on"), [(PARENT, {"traceparent": PARENT, "tracestate": "a=b"}), ("00-zz", {}), ("", {})]
)
def test_a_trace_context_that_is_none_is_dropped_with_its_state(
    structured: bool, said: str, passed_on: dict[str, str]
) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}
    if structured:
        whole = json.dumps({**event, "traceparent": said, "tracestate": "a=b"}).encode()
        got = read("t", 0, 0, b"k", whole, [("content-type", b"application/cloudevents+json")])
    else:
        plain = [("traceparent", said.encode()), ("tracestate", b"a=b")]
        got = read("t", 0, 0, b"k", b"{}", [*((f"ce_{k}", v.encode()) for k, v in event.items()), *plain])
    assert got.fault == ""
    assert got.headers == passed_on
