"""A record goes to the partition that every other Kafka producer would choose for its key."""

from __future__ import annotations

import tracemalloc

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.murmur import murmur2, partition
from libs.bus.port import Outgoing
from libs.bus.producer import KafkaPublisher
from libs.bus.settings import KafkaSettings


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_that_kafkas_own_tests_expect(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(key=st.binary(max_size=70), count=st.integers(1, 64))
def test_partitions_are_those_of_the_client_that_reads_them(key: bytes, count: int) -> None:
    every = list(range(count))
    assert partition(key, count) == DefaultPartitioner()(key, every, every)


def test_a_publisher_remembers_nothing_of_the_pods_that_it_told_of() -> None:
    publisher = KafkaPublisher(KafkaSettings("127.0.0.1:1", "test"), {"facts": 12})
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(20_000):
            publisher._partition(Outgoing("facts", f"pod/{n}", b"", "a.fact"))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 64 * 1024
