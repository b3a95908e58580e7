"""What a command says when it cannot do what was asked."""

from __future__ import annotations


class CommandError(Exception):
    """One sentence for the user; the command ends with status 1."""
