"""Which partition a key goes to: murmur2, as Kafka's own producers choose it, four bytes at a step.

Quick enough to be asked for every record. A memory of keys, which pays for a slow hash, holds every pod that ever was.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def partition(key: bytes, count: int) -> int:
    """Of `count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """The 32-bit hash (org.apache.kafka.common.utils.Utils.murmur2), unsigned."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for k in unpack_from(f"<{words}I", data):
        k = k * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if length & 3:
        h = (h ^ int.from_bytes(data[words << 2 :], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
