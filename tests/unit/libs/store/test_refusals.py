"""Redis answers and takes no writes: that is an outage to wait out, not a fault of ours to die of."""

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ResponseError

from libs.store.port import LedgerUnavailable
from libs.store.server import Server


@pytest.mark.parametrize(
    "said",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "CLUSTERDOWN The cluster is down",
        "BUSY Redis is busy running a script.",
    ],
    ids=lambda said: said.split()[0],
)
def test_a_redis_that_takes_no_writes_for_now_is_unavailable(said: str) -> None:
    fault = BaseParser.parse_error(said)  # as the client makes it of what came over the wire
    assert isinstance(fault, ResponseError)
    assert isinstance(Server._told(fault), LedgerUnavailable)


def test_what_we_got_wrong_is_told_as_it_is() -> None:
    fault = BaseParser.parse_error("ERR wrong number of arguments")
    assert isinstance(fault, ResponseError)
    assert Server._told(fault) is fault
