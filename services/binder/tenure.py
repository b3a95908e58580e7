"""Whether a claim that was begun is still ours. The ledger may take it back while its write waits for its turn, so a
write that is late, or is sent again, asks first. What was asked a moment ago is taken as true."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from libs.runtime.clock import Clock
from libs.store.port import Ledger, LedgerUnavailable, StaleGeneration
from services.binder.hand import Write

#: A first write later than this after its claim was begun, or was last heard of, asks the ledger whether it is ours.
STALE_S: Final = 1.0


class Tenure:
    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def still_ours(self, write: Write) -> bool | None:
        """None: not to be learned now. A data set that changed under us is opened again; older claims are dead."""
        try:
            return bool(await self._ledger.writing((write.assignment.claim,)))
        except LedgerUnavailable:
            return None
        except StaleGeneration:
            try:
                state = await self._ledger.open()
            except LedgerUnavailable:
                return None
            return None if state.generation == write.hand.plan.generation else False

    async def watch(self, waiting: Callable[[], Iterable[Write]]) -> NoReturn:
        """For ever: claims of the writes that wait for their turn."""
        while True:
            await self._clock.sleep(STALE_S / 4)
            await self._ask(waiting())

    async def _ask(self, waiting: Iterable[Write]) -> None:
        """Ask about all first writes that wait long, in few calls: asked one by one as their turn comes, a burst that
        takes longer than `STALE_S` costs a call for each."""
        asked_at = self._clock.monotonic()
        old = {w.assignment.claim: w for w in waiting if not w.sent and asked_at - w.begun_at > STALE_S / 2}
        if not old:
            return
        try:
            ours = await self._ledger.writing(tuple(old))
        except (LedgerUnavailable, StaleGeneration):
            return  # each is asked about in its turn
        for claim in ours:
            old[claim].begun_at = max(old[claim].begun_at, asked_at)
