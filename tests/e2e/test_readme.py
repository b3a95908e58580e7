"""The README's own commands, in its order, as a newcomer would type them."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def commands() -> list[list[str]]:
    """Of the block that begins on a cluster."""
    section = (ROOT / "README.md").read_text().split("## On a cluster")[1]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True) for line in block[1].splitlines()]
    return [words for words in lines if words]


class Terminal:
    """Runs commands in the checkout; what one prints as `export` holds for the next."""

    def __init__(self, stack: Path) -> None:
        self.stack = stack
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("DRYSTONE_") and k != "KUBECONFIG"}

    def run(self, *words: str, code: int = 0) -> str:
        assert words[0] == ".venv/bin/drystone"
        place = ["--dir", str(self.stack)] if words[1] == "stack" else []
        done = subprocess.run(
            [str(BIN / "drystone"), *words[1:], *place],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == code, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        for line in done.stdout.splitlines():
            if line.startswith("export "):
                self.environment |= dict(part.split("=", 1) for part in shlex.split(line)[1:])
        return done.stdout

    def until(self, wanted: str, *words: str) -> str:
        """What the command says as soon as it fits this pattern."""
        deadline = time.monotonic() + 30
        while not re.search(wanted, said := self.run(*words)):
            assert time.monotonic() < deadline, said
            time.sleep(0.3)
        return said


def test_the_readmes_commands_do_what_it_says(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "stack")
    _setup, up, submit, status, why, check, cancel, down = commands()
    try:
        assert "export KUBECONFIG=" in terminal.run(*up)
        assert terminal.run(*submit).endswith(": submitted\n")
        assert "4/4" in terminal.until("Running", *status)
        assert terminal.run(*why).count(": Running on node-") == 4
        assert terminal.run(*check).splitlines()[-1] == "all laws hold"
        said = json.loads(terminal.run(*check, "--json"))
        assert said == {"broken": [], "exclusive": "off"}
        terminal.run(*cancel)
        # Its pods leave when the garbage collector has come round.
        terminal.until("Cancelled .* Deleting|no jobs", *status)
    finally:
        terminal.run(*down)
    terminal.run(".venv/bin/drystone", "stack", "status", code=3)
