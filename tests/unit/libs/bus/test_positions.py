from __future__ import annotations

from libs.bus.port import Incoming
from libs.bus.positions import Positions


def record(offset, partition=0):
    return Incoming("t", partition, offset, "k", b"", "type")


def test_only_the_lowest_contiguous_run_is_due():
    positions = Positions()
    held = [positions.read(record(n)) for n in (5, 6, 7)]
    held[1].part_done()
    held[2].part_done()
    assert positions.due() == {}
    held[0].part_done()
    assert positions.due() == {("t", 0): 8}
    assert positions.due() == {}


def test_a_record_is_finished_when_all_its_parts_are():
    positions = Positions()
    held = positions.read(record(1), parts=2)
    held.part_done()
    assert positions.due() == {}
    held.part_done()
    assert positions.due() == {("t", 0): 2}
    positions.read(record(2), parts=0)
    assert positions.due() == {("t", 0): 3}


def test_what_finishes_after_its_partition_was_lost_counts_for_nothing():
    positions = Positions()
    old = positions.read(record(10))
    positions.forget([("t", 0)])
    again = positions.read(record(10))
    old.part_done()
    assert positions.due() == {}
    again.part_done()
    assert positions.due() == {("t", 0): 11}
