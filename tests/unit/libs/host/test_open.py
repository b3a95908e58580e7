"""What the environment says reaches the clients of Kafka."""

from libs.host.open import kafka_settings
from libs.host.settings import CommonSettings


def test_a_shorter_session_beats_often_enough_to_live_through_two_lost_heartbeats() -> None:
    kafka = kafka_settings("binder", CommonSettings(kafka_session_s=2.0))
    assert kafka.session_s == 2.0
    assert 3 * kafka.heartbeat_s <= kafka.session_s


def test_the_session_is_what_it_was_where_nobody_says_otherwise() -> None:
    kafka = kafka_settings("binder", CommonSettings())
    assert (kafka.session_s, kafka.heartbeat_s) == (10.0, 3.0)
