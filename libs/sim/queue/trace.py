"""Jobs of a trace, read from CSV. A row that cannot be right is an error with file, line and reason: no guesses."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from libs.sim.errors import SimulationError

COLUMNS = ("submit_s", "duration_s", "num_gpus")


@dataclass(frozen=True, slots=True)
class TraceJob:
    """`milli`: GPUs asked for, in thousandths; below 1000 a share of one GPU. `useful`: what of that counts as used
    (0: all), where a whole GPU is taken for less. Seconds from the trace's start."""

    id: str
    tenant: str
    submit: float
    duration: float
    milli: int
    priority: int = 0
    useful: int = 0


def read_jobs(path: Path) -> list[TraceJob]:
    """Jobs by submit time, then by their order in the file. Columns `submit_s`, `duration_s`, `num_gpus` are needed;
    `job_id`, `vc` (the tenant), `priority` and `gpu_milli` (a share of one GPU) are read where they are."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SimulationError(f"{path}: cannot be read: {error}") from error
    return parse_jobs(io.StringIO(text, newline=""), str(path))


def first_days(jobs: list[TraceJob], days: float) -> list[TraceJob]:
    """Those that come within so many days of the trace's start; 0: all."""
    found = [job for job in jobs if job.submit < days * 86_400] if days else jobs
    if not found:
        raise SimulationError(f"no jobs in the first {days:g} days")
    return found


def parse_jobs(lines: Iterable[str], name: str) -> list[TraceJob]:
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise SimulationError(f"{name}:1: no header")
        at = {column.strip(): index for index, column in enumerate(header)}
        missing = [column for column in COLUMNS if column not in at]
        if missing:
            raise SimulationError(f"{name}:1: no column {', '.join(missing)}")
        if len(at) != len(header):
            raise SimulationError(f"{name}:1: a column stands twice")
        jobs: list[TraceJob] = []
        ids: dict[str, int] = {}
        for row in reader:
            if not row:
                continue
            line = reader.line_num
            if len(row) != len(header):
                raise SimulationError(f"{name}:{line}: {len(row)} fields, the header has {len(header)}")
            try:
                job = _job({column: row[index].strip() for column, index in at.items()}, len(jobs))
            except ValueError as error:
                raise SimulationError(f"{name}:{line}: {error}") from None
            if job.id in ids:
                raise SimulationError(f"{name}:{line}: job_id {job.id} stands in line {ids[job.id]} already")
            ids[job.id] = line
            jobs.append(job)
    except csv.Error as error:
        raise SimulationError(f"{name}:{reader.line_num}: {error}") from error
    if not jobs:
        raise SimulationError(f"{name}: no jobs")
    return sorted(jobs, key=lambda job: job.submit)


def _job(fields: dict[str, str], index: int) -> TraceJob:
    submit = _number(fields, "submit_s")
    if submit < 0:
        raise ValueError(f"submit_s is {fields['submit_s']}, before the trace's start")
    duration = _number(fields, "duration_s")
    if duration < 0:
        raise ValueError(f"duration_s is {fields['duration_s']}, less than nothing")
    return TraceJob(
        fields.get("job_id") or str(index), fields.get("vc", ""), submit, duration, _milli(fields), _priority(fields)
    )


def _number(fields: dict[str, str], column: str) -> float:
    try:
        value = float(fields[column])
    except ValueError:
        raise ValueError(f"{column} is {fields[column]!r}, not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column} is {fields[column]!r}, not a finite number")
    return value


def _milli(fields: dict[str, str]) -> int:
    count = _number(fields, "num_gpus")
    if count < 1 or count != int(count):
        raise ValueError(f"num_gpus is {fields['num_gpus']}, not a whole number from 1 on")
    if not fields.get("gpu_milli"):
        return int(count) * 1000
    share = _number(fields, "gpu_milli")
    if not 1 <= share <= 1000 or share != int(share):
        raise ValueError(f"gpu_milli is {fields['gpu_milli']}, not a whole number from 1 to 1000")
    if share < 1000 and count != 1:
        raise ValueError(
            f"gpu_milli is {fields['gpu_milli']} with num_gpus {fields['num_gpus']}: shares are of one GPU"
        )
    return int(count * share)


def _priority(fields: dict[str, str]) -> int:
    text = fields.get("priority") or "0"
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"priority is {text!r}, not a whole number") from None
