"""looptime asks for a loop before every test, sync ones too, and Python 3.11 would make one that nobody closes; once a
loop has been set (to none) it does not."""

import asyncio

asyncio.set_event_loop(None)
