"""A trace is read whole or not at all, and the reader says where it is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from libs.sim.errors import SimulationError
from libs.sim.queue.trace import first_days, read_jobs

HEADER = "job_id,vc,submit_s,duration_s,num_gpus,gpu_milli,priority\n"


def written(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(row + "\n" for row in rows), encoding="utf-8")
    return path


def test_jobs_come_by_submit_time_with_tenant_share_and_priority(tmp_path: Path) -> None:
    jobs = read_jobs(written(tmp_path / "t.csv", "late,a,50,10,4,,", "early,b,5.5,20,1,250,7"))
    assert [(j.id, j.tenant, j.submit, j.duration, j.milli, j.priority) for j in jobs] == [
        ("early", "b", 5.5, 20.0, 250, 7),
        ("late", "a", 50.0, 10.0, 4000, 0),
    ]


def test_a_compressed_trace_is_the_same_trace(tmp_path: Path) -> None:
    plain = written(tmp_path / "t.csv", "a,x,0,10,1,,", "b,y,1,10,2,,")
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_jobs(packed) == read_jobs(plain)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("b,x,soon,10,1,,", "submit_s is 'soon', not a number"),
        ("b,x,-1,10,1,,", "submit_s is -1, before the trace's start"),
        ("b,x,nan,10,1,,", "submit_s is 'nan', not a finite number"),
        ("b,x,0,-5,1,,", "duration_s is -5, less than nothing"),
        ("b,x,0,inf,1,,", "duration_s is 'inf', not a finite number"),
        ("b,x,0,10,0,,", "num_gpus is 0, not a whole number from 1 on"),
        ("b,x,0,10,1.5,,", "num_gpus is 1.5, not a whole number from 1 on"),
        ("b,x,0,10,1,0,", "gpu_milli is 0, not a whole number from 1 to 1000"),
        ("b,x,0,10,2,500,", "gpu_milli is 500 with num_gpus 2: shares are of one GPU"),
        ("b,x,0,10,1,,high", "priority is 'high', not a whole number"),
        ("b,x,0,10", "4 fields, the header has 7"),
        ("a,x,0,10,1,,", "job_id a stands in line 2 already"),
    ],
)
def test_a_malformed_row_is_named_with_file_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    path = written(tmp_path / "t.csv", "a,x,0,10,1,,", row)
    with pytest.raises(SimulationError) as refused:
        read_jobs(path)
    assert str(refused.value) == f"{path}:3: {reason}"


def test_a_trace_without_run_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("submit_s,num_gpus\n1,1\n", encoding="utf-8")
    with pytest.raises(SimulationError, match=r"t\.csv:1: no column duration_s"):
        read_jobs(path)


@pytest.mark.parametrize("content", [b"", b"submit_s,duration_s,num_gpus\n", b"\xff\xfe\x00"])
def test_a_trace_without_jobs_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(SimulationError, match=r"t\.csv"):
        read_jobs(path)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(HEADER.encode() * 50)[:-12])
    with pytest.raises(SimulationError, match="cannot be read"):
        read_jobs(path)


def test_a_trace_may_be_cut_to_its_first_days_and_not_to_nothing(tmp_path: Path) -> None:
    jobs = read_jobs(written(tmp_path / "t.csv", "a,x,7200,10,1,,", "b,x,86399,10,1,,", "c,x,86400,10,1,,"))
    assert [job.id for job in first_days(jobs, 1)] == ["a", "b"]
    assert first_days(jobs, 0) == jobs
    with pytest.raises(SimulationError, match=r"no jobs in the first 0\.05 days"):
        first_days(jobs, 0.05)
