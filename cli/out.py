"""What commands say: answers on standard output, whole lines or JSON; progress on standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import structlog

from cli.errors import CommandError
from libs.observe.logs import clean


def say(text: str) -> None:
    """Shown at once, also where the output is a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show(value: Any) -> None:
    """As JSON, for programs."""
    say(json.dumps(value, indent=2))


def write(path: Path, text: str) -> None:
    """A file that was asked for. It comes after the answer on standard output, which is not lost with it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror or error}") from None


def note(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def logs_aside() -> None:
    """Parts of services that a command runs in its own process log to standard error: what is answered stays readable
    by programs."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(file=sys.stderr))


def fail(text: str, *, as_json: bool) -> None:
    """One sentence; where JSON was asked for, an object with it on standard output too."""
    text = clean(text)
    if as_json:
        show({"error": text})
    note(f"drystone: {text}")
