"""Structured logs: one event name and fields per line, the same context on every line of a task, no secrets.

Secrets are kept out twice: by the name of the field, and by value (`hide` registers what must never be printed, for
instance a password that an error message of a library quotes back).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_NAME = re.compile(r"pass(word|wd)?$|secret|token|authorization|api_?key|private_?key|credential", re.I)
#: user:password@ of a URL.
_URL_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):([^@/\s]+)@")
_HIDDEN = "[hidden]"
_hidden_values: set[str] = set()


def hide(*values: str) -> None:
    """Never print these again. Short ones are not taken: they would blot out ordinary text."""
    _hidden_values.update(value for value in values if len(value) >= 4)


def clean(text: str) -> str:
    """`text` without registered secrets and passwords in URLs."""
    for value in _hidden_values:
        if value in text:
            text = text.replace(value, _HIDDEN)
    return _URL_PASSWORD.sub(rf"\1:{_HIDDEN}@", text) if "://" in text else text


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return clean(value)
        case bool() | int() | float() | None:
            return value
        case dict():
            return {k: _HIDDEN if _secret(k) else _cleaned(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_cleaned(v) for v in value]
        case bytes():
            return clean(value.decode(errors="replace"))
        case _:
            return clean(str(value))


def _secret(name: object) -> bool:
    return isinstance(name, str) and _SECRET_NAME.search(name) is not None


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor: hides fields by name and registered secrets by value."""
    for name, value in event.items():
        event[name] = _HIDDEN if _secret(name) and value else _cleaned(value)
    return event


def configure(*, level: str = "INFO", format: str = "json", **context: str) -> None:
    """Logs of structlog and of the standard library go to stderr in one format (`json` or `console`). `context` stands
    on every line of this process."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _constant(context),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    tail: list[Any]
    if format == "json":
        tail = [structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer()]
    else:
        tail = [
            structlog.processors.format_exc_info,
            redact,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ]
    numeric = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *tail],
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak only when something is wrong: aiokafka logs every commit at INFO.
    root.setLevel(max(numeric, logging.WARNING))


def _constant(context: dict[str, str]) -> Any:
    def add(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in context.items():
            event.setdefault(name, value)
        return event

    return add
