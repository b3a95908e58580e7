"""Exceptions of this package. HTTP and network faults of single calls are never raised: the Answer says them."""

from __future__ import annotations

from libs.kube.port import Answer


class ReadFailed(Exception):
    """A list or get could not be completed; nothing is known. Try again later."""

    def __init__(self, path: str, answer: Answer) -> None:
        super().__init__(f"{path}: {answer.status or 'no answer'} {answer.body[:300].decode(errors='replace')}")
        self.path = path
        self.answer = answer


class BadConfiguration(Exception):
    """The identity or address of the API server cannot be made out of what was given."""
