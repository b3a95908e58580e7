"""The ledger without a server: the same Lua, on fakeredis, inside this process. Nothing is kept after its end."""

from __future__ import annotations

from typing import Any

import fakeredis

from libs.store.redis import RedisLedger


def embedded_ledger(*, server: fakeredis.FakeServer | None = None, **settings: Any) -> RedisLedger:
    """Ledgers over one `server` share their data, as clients of one Redis do. `settings` are RedisLedger's."""
    server = server or fakeredis.FakeServer(version=(7,))
    client = fakeredis.FakeAsyncRedis(server=server, version=(7,))
    blocking = fakeredis.FakeAsyncRedis(server=server, version=(7,))
    return RedisLedger("redis://embedded", client=client, blocking_client=blocking, **settings)
