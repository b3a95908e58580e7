"""Answers in the API server's form: Status objects with the reasons and codes that clients act on."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.kube.port import Answer

_encode = msgspec.json.encode


class Refusal(Exception):
    """Raised inside the embedded server where the real one would answer with a Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        cause: str = "",
        field: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.cause, self.field = code, reason, cause, field
        self.retry_after_s = retry_after_s

    def answer(self) -> Answer:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }
        if self.cause:
            said = {"reason": self.cause, "message": str(self)}
            status["details"] = {"causes": [{**said, "field": self.field} if self.field else said]}
        return Answer(self.code, _encode(status), self.code >= 500, self.retry_after_s)


def success(code: int) -> Answer:
    return Answer(
        code, _encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code})
    )


def not_found(resource: str, name: str) -> Refusal:
    return Refusal(404, "NotFound", f'{resource.lstrip("/")} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> Refusal:
    message = f'Operation cannot be fulfilled on {resource.lstrip("/")} "{name}": {why}'
    return Refusal(409, "Conflict", message)


def invalid(resource: str, name: str, why: str) -> Refusal:
    return Refusal(422, "Invalid", f'{resource.lstrip("/")} "{name}" is invalid: {why}')


def bad_request(why: str) -> Refusal:
    return Refusal(400, "BadRequest", why)


def other_uid(resource: str, name: str, uid: str) -> Refusal:
    """A merge patch that names another object's uid."""
    why = f'metadata.uid: Invalid value: "{uid}": field is immutable'
    message = f'{resource.lstrip("/")} "{name}" is invalid: {why}'
    return Refusal(422, "Invalid", message, cause="FieldValueInvalid", field="metadata.uid")


def unpatchable() -> Refusal:
    """A JSON patch that does not apply, a failed `test` included: the server says no more than this."""
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request")
