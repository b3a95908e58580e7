"""The ledger read as a whole, page by page. What changes meanwhile is in the stream, behind the pages' position."""

from __future__ import annotations

from collections.abc import AsyncIterator

from libs.domain.usage import NodeUse, QueueUse
from libs.store.port import DumpPage, Holder, Ledger


async def dump_pages(ledger: Ledger) -> AsyncIterator[DumpPage]:
    cursor = ""
    while True:
        page = await ledger.dump(cursor)
        yield page
        cursor = page.cursor
        if not cursor:
            return


async def all_use(ledger: Ledger) -> tuple[dict[str, NodeUse], dict[str, QueueUse]]:
    """What nodes (by name) and queues (by path) hold."""
    nodes: dict[str, NodeUse] = {}
    queues: dict[str, QueueUse] = {}
    async for page in dump_pages(ledger):
        nodes.update((use.node, use) for use in page.nodes)
        queues.update((use.path, use) for use in page.queues)
    return nodes, queues


async def all_holders(ledger: Ledger) -> list[Holder]:
    """Claims, earmarks and tasks."""
    found: list[Holder] = []
    cursor = ""
    while True:
        cursor, page = await ledger.holders(cursor)
        found.extend(page)
        if not cursor:
            return found
