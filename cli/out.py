"""What commands say: answers on standard output, whole lines or JSON; progress on standard error."""

from __future__ import annotations

import json
import sys
from typing import Any

from libs.observe.logs import clean


def say(text: str) -> None:
    """Shown at once, also where the output is a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show(value: Any) -> None:
    """As JSON, for programs."""
    say(json.dumps(value, indent=2))


def note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fail(text: str, *, as_json: bool) -> None:
    """One sentence; where JSON was asked for, an object with it on standard output too."""
    text = clean(text)
    if as_json:
        show({"error": text})
    note(f"drystone: {text}")
