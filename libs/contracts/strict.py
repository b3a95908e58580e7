"""What others say, read strictly: no unknown field and no number that is none. Refusals are values, with a path and a
sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

#: Pattern of a DNS label.
NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a submission cannot be served; `path` says where, in the submission's own terms."""

    reason: str
    path: str = ""
    id: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def rejected(error: ValidationError, external: str) -> Rejected:
    """The first thing that was wrong. `external` is the id of what was said."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "no such field"
    return Rejected(message, path[:200], external[:200])
