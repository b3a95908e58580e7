"""Why a broker does not let us in, in words for an operator."""

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
)

from libs.bus.entry import in_words, why_not
from libs.bus.port import BusUnavailable
from libs.bus.settings import KafkaSettings

NAMED = KafkaSettings("127.0.0.1:1", sasl_username="binder")


@pytest.mark.parametrize(
    ("error", "settings", "words"),
    [
        (GroupAuthorizationFailedError(), NAMED, "Kafka does not let the account binder join the group g"),
        (TopicAuthorizationFailedError(), NAMED, "Kafka does not let the account binder use the topic g"),
        (
            TopicAuthorizationFailedError(),
            KafkaSettings("127.0.0.1:1"),
            "Kafka does not let a client without an account use the topic g",
        ),
    ],
)
def test_what_the_access_list_lacks_is_said(error: KafkaError, settings: KafkaSettings, words: str) -> None:
    assert in_words(error, settings, "g") == f"{words}: its access list lacks it"


def test_another_fault_is_told_as_it_is() -> None:
    assert in_words(KafkaError("odd"), NAMED, "g") == repr(KafkaError("odd"))


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2"])
async def test_nobody_there_is_a_matter_of_waiting_and_says_which_fault(bootstrap: str) -> None:
    found = await why_not(KafkaSettings(bootstrap, request_s=3.0), KafkaConnectionError("Unable to bootstrap"))
    assert isinstance(found, BusUnavailable)
    assert f"no broker answers at {bootstrap}" in str(found)
    assert "Connect call failed" in str(found)
