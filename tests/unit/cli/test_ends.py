"""A command that started parts and services is asked to end, from wherever it was started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from cli import ends

async def work():
    print("began", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)

ends.in_order()
try:
    asyncio.run(work())
except KeyboardInterrupt:
    print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("background", [False, True], ids=["at a terminal", "sent to the background by a shell"])
def test_it_cleans_up_and_ends(number: signal.Signals, background: bool) -> None:
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if background else []
    with subprocess.Popen([*ignoring, sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "began\n"
            process.send_signal(number)
            assert process.communicate(timeout=30)[0] == "cleaned up\nended\n"
        finally:
            process.kill()
