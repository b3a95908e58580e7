"""Lists that cannot be right are refused whole, with file, line and reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from libs.sim.errors import SimulationError
from libs.sim.lists import read_nodes, read_tasks

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,G2\nn2,64000,262144,0,\n"
TASKS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "p1,4000,8192,1,470,\n"
    "p2,8000,8192,2,1000,G2|T4\n"
    "p3,1,1,0,0,\n"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_nodes_and_tasks_are_read_as_they_stand(tmp_path: Path) -> None:
    nodes = read_nodes(write(tmp_path / "nodes.csv", NODES))
    assert [(n.name, n.gpus, n.model) for n in nodes] == [("n1", 8, "G2"), ("n2", 0, "")]
    share, whole, none = (task.request.gpu for task in read_tasks(write(tmp_path / "tasks.csv", TASKS)))
    assert (share.count, share.milli) == (1, 470)
    assert (whole.count, whole.milli, whole.models) == (2, 0, ("G2", "T4"))
    assert none.count == 0


def test_compressed_lists_are_read_whatever_their_name(tmp_path: Path) -> None:
    path = tmp_path / "tasks"
    path.write_bytes(gzip.compress(TASKS.encode()))
    assert len(read_tasks(path)) == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("sn,cpu_milli\n", "line 1: no column 'memory_mib'"),
        (NODES + "n3,many,1,1,G2\n", "line 4: cpu_milli is 'many', not a whole number"),
        (NODES + "n3,1,1,-1,G2\n", "line 4: gpu is -1, not in 0..64"),
        (NODES + "n3,1,1\n", "line 4: 3 fields where the header has 5"),
        (NODES + "n1,1,1,1,G2\n", "line 4: a second node is called 'n1'"),
        (NODES + "n3,1,1,1,\n", "line 4: model is empty"),
        ("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,0,\n", "no node with a GPU"),
    ],
    ids=lambda text: text[-24:].strip() or "empty file",
)
def test_a_wrong_node_list_is_refused_with_file_line_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path / "nodes.csv", text)
    with pytest.raises(SimulationError) as caught:
        read_nodes(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("p,1,1,1,0,", "gpu_milli is 0 and num_gpu is not"),
        ("p,1,1,2,500,", "2 GPUs of 500 milli each: shares are of one GPU"),
        ("p,1,1,1,1001,", "gpu_milli is 1001, not in 0..1000"),
        (",1,1,1,10,", "name is empty"),
    ],
)
def test_a_wrong_task_is_refused_with_file_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path / "tasks.csv", TASKS + row + "\n")
    with pytest.raises(SimulationError, match=f"line 5: {reason}"):
        read_tasks(path)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "tasks.csv.gz"
    broken.write_bytes(gzip.compress(TASKS.encode())[:20])
    with pytest.raises(SimulationError, match="damaged gzip file"):
        read_tasks(broken)
    with pytest.raises(SimulationError, match="No such file"):
        read_nodes(tmp_path / "nowhere.csv")
