"""Lists of nodes and of tasks from CSV files, plain or gzip-compressed, read whole or not at all.

Node columns: sn, cpu_milli, memory_mib, gpu, model. Task columns: name, cpu_milli, memory_mib, num_gpu, gpu_milli and
optionally gpu_spec (models accepted, joined by "|"); others are ignored. These are the columns of the openb trace.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from libs.domain.resources import WHOLE, GpuRequest, Request
from libs.sim.errors import SimulationError

#: Largest numbers taken for real: a node of 10,000 cores, 1 PiB, 64 GPUs.
_MOST_CPU: Final = 10_000_000
_MOST_MIB: Final = 1 << 30
_MOST_GPUS: Final = 64
#: A century.
_MOST_S: Final = 3_200_000_000


class TimedRow(NamedTuple):
    """A task with the time that it came at and how long it ran, seconds."""

    task: TaskRow
    came: int
    ran: int


class NodeRow(NamedTuple):
    """A node with all its room: CPU milli, memory MiB, GPUs of one model."""

    name: str
    cpu: int
    mem: int
    gpus: int
    model: str


class TaskRow(NamedTuple):
    name: str
    request: Request

    @property
    def gpu_milli(self) -> int:
        return self.request.gpu_milli


def read_nodes(path: Path) -> list[NodeRow]:
    """Raises SimulationError with file, line and reason."""
    found: list[NodeRow] = []
    names: set[str] = set()
    for row in rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        gpus = row.number("gpu", 0, _MOST_GPUS)
        node = NodeRow(
            row.text("sn"),
            row.number("cpu_milli", 0, _MOST_CPU),
            row.number("memory_mib", 0, _MOST_MIB),
            gpus,
            row.text("model") if gpus else row.fields["model"].strip(),
        )
        if node.name in names:
            raise row.wrong(f"a second node is called {node.name!r}")
        names.add(node.name)
        found.append(node)
    if not any(node.gpus for node in found):
        raise SimulationError(f"{path}: no node with a GPU")
    return found


def read_tasks(path: Path) -> list[TaskRow]:
    """Raises SimulationError with file, line and reason."""
    found: list[TaskRow] = []
    shared: dict[Request, Request] = {}
    for row in rows(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        request = row.request()
        found.append(TaskRow(row.text("name"), shared.setdefault(request, request)))
    if not any(task.gpu_milli for task in found):
        raise SimulationError(f"{path}: no task asks for a GPU")
    return found


def read_timed(path: Path) -> list[TimedRow]:
    """Tasks that ran, by the time they came at. Columns creation_time, scheduled_time (empty: it never ran, and is left
    out) and deletion_time, beside those of `read_tasks`; run times are at least one second. Raises SimulationError."""
    found: list[TimedRow] = []
    shared: dict[Request, Request] = {}
    times = ("creation_time", "scheduled_time", "deletion_time")
    for row in rows(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", *times)):
        if not row.fields["scheduled_time"].strip():
            continue
        came, started, ended = (row.number(column, 0, _MOST_S) for column in times)
        if not came <= started <= ended:
            raise row.wrong(f"created at {came}, scheduled at {started}, deleted at {ended}")
        request = row.request()
        task = TaskRow(row.text("name"), shared.setdefault(request, request))
        found.append(TimedRow(task, came, max(ended - started, 1)))
    if not any(row.task.gpu_milli for row in found):
        raise SimulationError(f"{path}: no task that ran asks for a GPU")
    return sorted(found, key=lambda timed: timed.came)


class Row:
    """One line of a list, with what is needed to say what is wrong with it."""

    def __init__(self, path: Path, line: int, fields: dict[str, str]) -> None:
        self._path = path
        self._line = line
        self.fields = fields

    def wrong(self, reason: str) -> SimulationError:
        return SimulationError(f"{self._path}, line {self._line}: {reason}")

    def text(self, column: str) -> str:
        text = self.fields[column].strip()
        if not text:
            raise self.wrong(f"{column} is empty")
        return text

    def number(self, column: str, least: int, most: int) -> int:
        text = self.fields[column].strip()
        try:
            number = int(text)
        except ValueError:
            raise self.wrong(f"{column} is {text!r}, not a whole number") from None
        if not least <= number <= most:
            raise self.wrong(f"{column} is {number}, not in {least}..{most}")
        return number

    def request(self) -> Request:
        count = self.number("num_gpu", 0, _MOST_GPUS)
        milli = self.number("gpu_milli", 0, WHOLE)
        models = tuple(sorted({m.strip() for m in self.fields.get("gpu_spec", "").split("|") if m.strip()}))
        if count and not milli:
            raise self.wrong("gpu_milli is 0 and num_gpu is not")
        if count > 1 and milli < WHOLE:
            raise self.wrong(f"{count} GPUs of {milli} milli each: shares are of one GPU")
        gpu = GpuRequest(count, milli if milli < WHOLE else 0, models=models) if count else GpuRequest()
        return Request(self.number("cpu_milli", 0, _MOST_CPU), self.number("memory_mib", 0, _MOST_MIB), gpu)


def rows(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    """The lines of a list that has these columns. Raises SimulationError."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            if header is None:
                header = [name.strip() for name in fields]
                missing = [name for name in columns if name not in header]
                if missing:
                    raise SimulationError(f"{path}, line 1: no column {missing[0]!r}")
                continue
            if not fields:
                continue
            row = Row(path, reader.line_num, dict(zip(header, fields, strict=False)))
            if len(fields) != len(header):
                raise row.wrong(f"{len(fields)} fields where the header has {len(header)}")
            yield row
    except csv.Error as error:
        raise SimulationError(f"{path}, line {reader.line_num}: {error}") from None
    if header is None:
        raise SimulationError(f"{path}: empty")


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except OSError as error:
        raise SimulationError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise SimulationError(f"{path}: damaged gzip file") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SimulationError(f"{path}, line {line}: not UTF-8 text") from None
