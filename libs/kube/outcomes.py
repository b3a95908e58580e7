"""What an answer of the API server to a write means. Everything that is not certain is UNSURE: read, never assume."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from libs.kube.objects import Status, status_decoder
from libs.kube.port import Answer


class Outcome(enum.Enum):
    DONE = "done"
    #: A create met an object of that name: read it, it may be our own earlier write.
    EXISTS = "exists"
    #: Bound already, precondition not met, being deleted, gated: read to learn which.
    CONFLICT = "conflict"
    GONE = "gone"
    #: The same request will be refused again: forbidden, invalid, malformed.
    REFUSED = "refused"
    #: Nothing was done; come back after `retry_after` (429, also a disruption budget's refusal).
    THROTTLED = "throttled"
    UNSURE = "unsure"


#: How a patch is answered whose uid is not that of the object: 422, and not the 409 that one would expect. The first is
#: for a uid inside a merge patch, the second for a failed `test` of a JSON patch (no other words are given).
_OTHER_OBJECT: Final = (b'"field":"metadata.uid"', b"the server rejected our request due to an error in our request")


def classify(answer: Answer) -> Outcome:
    status = answer.status
    if 200 <= status < 300:
        return Outcome.DONE
    if answer.unsure or status == 0 or status >= 500:
        return Outcome.UNSURE
    if status == 404 or status == 410:
        return Outcome.GONE
    if status == 409:
        return Outcome.EXISTS if b'"AlreadyExists"' in answer.body else Outcome.CONFLICT
    if status in (401, 429):
        # 401: our token is being replaced. That says nothing about the request, so it must not count against the pod.
        return Outcome.THROTTLED
    if status == 408:
        return Outcome.UNSURE
    if status == 422 and any(sign in answer.body for sign in _OTHER_OBJECT):
        return Outcome.CONFLICT
    return Outcome.REFUSED


def retry_after(answer: Answer) -> float | None:
    """Seconds the server asks us to wait, if it says."""
    if answer.retry_after_s is not None:
        return answer.retry_after_s
    details = status_of(answer).details
    return float(details.retry_after_seconds) if details and details.retry_after_seconds else None


def status_of(answer: Answer) -> Status:
    """The Status object in the body, empty where there is none."""
    try:
        return status_decoder.decode(answer.body) if answer.body else Status()
    except msgspec.MsgspecError:
        return Status()


def why(answer: Answer) -> str:
    """The server's words, short, for people."""
    said = status_of(answer)
    text = said.message or said.reason or answer.body[:200].decode(errors="replace")
    return f"{answer.status or 'no answer'}: {text}" if text else f"{answer.status or 'no answer'}"


def over_budget(answer: Answer) -> bool:
    """Whether an eviction was refused because of a PodDisruptionBudget (as opposed to server load)."""
    if answer.status != 429:
        return False
    details = status_of(answer).details
    return any(c.reason == "DisruptionBudget" for c in (details.causes or ()) if details) if details else False
