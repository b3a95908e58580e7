"""The carried slice of the openb trace as nodes and pods: shapes and run times are the trace's, gangs are made here."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from libs.domain import keys
from libs.kube.sim.kubelet import SECONDS

DATA = Path(__file__).parent / "data"
GANG_MOST = 8

#: MiB of one device, from the trace's artifact; its models G2 and G3 are undisclosed.
GPU_MIB = {"T4": 15109, "V100M16": 16160, "P100": 16280, "A10": 22731, "V100M32": 32510, "G2": 20000, "G3": 30000}


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job: pods to create together. `gpus` is what all of them ask for, devices."""

    name: str
    pods: tuple[dict[str, Any], ...]
    seconds: float
    gpus: float


def nodes() -> list[dict[str, Any]]:
    return [_node(row) for row in _rows(DATA / "openb_nodes.csv")]


def arrivals(limit: int = 0) -> list[Arrival]:
    """Jobs in the trace's order. Neighbouring tasks of one shape become gangs: every third such run, of up to eight."""
    rows = _rows(DATA / "openb_tasks.csv")
    if limit:
        rows = rows[:limit]
    result: list[Arrival] = []
    for number, (_, run) in enumerate(groupby(rows, key=_shape)):
        members = list(run)
        while members:
            size = min(len(members), GANG_MOST) if number % 3 == 0 else 1
            gang, members = members[:size], members[size:]
            result.append(_job(gang))
    return result


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _shape(row: dict[str, str]) -> tuple[str, ...]:
    return row["cpu_milli"], row["memory_mib"], row["num_gpu"], row["gpu_milli"], row["gpu_spec"]


def _node(row: dict[str, str]) -> dict[str, Any]:
    amounts = {
        "cpu": f"{row['cpu_milli']}m",
        "memory": f"{row['memory_mib']}Mi",
        "pods": "250",
        keys.GPU_RESOURCE: row["gpu"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": row["sn"],
            "labels": {
                "kubernetes.io/hostname": row["sn"],
                keys.NODE_GPU_MODEL: row["model"],
                keys.NODE_GPU_MEMORY: str(GPU_MIB[row["model"]]),
            },
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _job(rows: list[dict[str, str]]) -> Arrival:
    name = rows[0]["name"]
    gang = {keys.JOB: name, keys.GANG_MIN: str(len(rows))} if len(rows) > 1 else {}
    seconds = [float(r["deletion_time"]) - float(r["scheduled_time"]) for r in rows]
    gpus = sum(int(r["num_gpu"]) * int(r["gpu_milli"]) / 1000 for r in rows)
    return Arrival(name, tuple(_pod(r, gang, s) for r, s in zip(rows, seconds, strict=True)), max(seconds), gpus)


def _pod(row: dict[str, str], gang: dict[str, str], seconds: float) -> dict[str, Any]:
    annotations = {**gang, SECONDS: f"{seconds:.0f}"}
    amounts = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}
    if int(row["num_gpu"]):
        if int(row["gpu_milli"]) < 1000:
            annotations[keys.GPU_FRACTION] = str(int(row["gpu_milli"]) / 1000)
        else:
            amounts[keys.GPU_RESOURCE] = row["num_gpu"]
        if row["gpu_spec"]:
            annotations[keys.GPU_MODELS] = row["gpu_spec"].replace("|", ",")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": row["name"], "namespace": "default", "annotations": annotations},
        "spec": {
            "schedulerName": keys.SCHEDULER_NAME,
            "containers": [{"name": "main", "image": "train:1", "resources": {"requests": amounts, "limits": amounts}}],
        },
    }


def bodies(jobs: list[Arrival]) -> Iterator[bytes]:
    for job in jobs:
        for pod in job.pods:
            yield json.dumps(pod).encode()
