"""What the environment says reaches the clients of Kafka."""

import pytest

from libs.host.open import kafka_settings
from libs.host.settings import CommonSettings


def test_a_shorter_session_beats_often_enough_to_live_through_two_lost_heartbeats() -> None:
    kafka = kafka_settings("binder", CommonSettings(kafka_session_s=2.0))
    assert kafka.session_s == 2.0
    assert 3 * kafka.heartbeat_s <= kafka.session_s


@pytest.mark.parametrize("session_s", [10.0, 60.0])
def test_a_member_learns_of_a_new_division_within_a_second_however_long_its_session(session_s: float) -> None:
    kafka = kafka_settings("binder", CommonSettings(kafka_session_s=session_s))
    assert (kafka.session_s, kafka.heartbeat_s) == (session_s, 1.0)


def test_the_session_is_ten_seconds_where_nobody_says_otherwise() -> None:
    assert kafka_settings("binder", CommonSettings()).session_s == 10.0
