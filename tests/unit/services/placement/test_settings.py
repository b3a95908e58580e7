"""What an operator leaves unsaid."""

from services.placement.settings import PlacementSettings


def test_two_replicas_draw_differently_where_no_seed_is_given() -> None:
    one, other = PlacementSettings(replica_id="placement-0"), PlacementSettings(replica_id="placement-1")
    assert one.draws_by != other.draws_by
    assert one.draws_by == PlacementSettings(replica_id="placement-0").draws_by


def test_a_seed_that_is_given_is_everybodys() -> None:
    assert {PlacementSettings(replica_id=name, placement_seed=7).draws_by for name in ("a", "b")} == {7}
