"""How a command that started processes of its own is ended: it ends them too, they would live on."""

from __future__ import annotations

import signal


def in_order() -> None:
    """From now on SIGTERM does what an interrupt at the terminal does: what runs is cancelled and cleans up.

    A shell starts what it sends to the background with SIGINT ignored. Left so, asyncio would not turn it into a
    cancellation, and neither signal would end the command.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
