"""Giving back to the ledger what a job no longer wants: planned claims and earmarks of cancelled or deleted jobs.

Without it they would end by their deadlines; with it their room is everybody's at once. Never in the way of a pass.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

import structlog

from libs.runtime.backoff import Backoff
from libs.runtime.clock import Clock
from libs.store.port import Ledger, LedgerUnavailable, StaleGeneration
from services.placement.state import State

log = structlog.get_logger()


class Returns:
    def __init__(self, state: State, ledger: Ledger, clock: Clock) -> None:
        self._state = state
        self._ledger = ledger
        self._clock = clock

    async def run(self) -> NoReturn:
        state = self._state
        pause = Backoff(0.1, 5.0)
        while True:
            state.returns_event.clear()
            try:
                while state.returns:
                    one = state.returns[0]
                    with suppress(StaleGeneration):  # what is of an older data set is gone with it
                        await self._ledger.drop(one.job, one.ids, one.generation)
                    state.returns.pop(0)
                pause.reset()
            except LedgerUnavailable as error:
                log.warning("could not give back", jobs=len(state.returns), error=str(error), tries=pause.tries)
                await self._clock.sleep(pause.next())
                continue
            await state.returns_event.wait()
