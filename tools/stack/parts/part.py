"""What the stack has to know of a part to start it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.stack.info import StackInfo

Tools = Mapping[str, Path]
"""Where the programs lie that a part asked for."""


def _nothing(_info: StackInfo, _tools: Tools) -> None:
    """For a part without files of its own."""


@dataclass(frozen=True, slots=True)
class Part:
    """One program of the stack. The functions are given the stack as it will be; they keep nothing themselves."""

    name: str
    tools: tuple[str, ...]
    command: Callable[[StackInfo, Tools], list[str]]
    ready: Callable[[StackInfo], bool]
    """Whether it answers now; asked again and again."""
    prepare: Callable[[StackInfo, Tools], None] = _nothing
    """Writes its files before each start; keeps data that is there."""
    after: tuple[str, ...] = ()
    """The parts that must be ready before it starts."""
    second_ports: tuple[str, ...] = ()
    """Ports that it listens on besides its own."""
