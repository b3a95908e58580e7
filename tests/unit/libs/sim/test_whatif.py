"""The question `what would let it in?`, asked of two lists."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.errors import CommandError
from cli.simulate import simulate_app

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,256000,8,A\nb,64000,256000,8,A\nc,32000,64000,2,B\n"
RUNNING = """name,node,cpu_milli,memory_mib,num_gpu,gpu_milli,job,gang_min,ran_s,movable
x,a,1000,1000,3,1000,,,9000,yes
y,b,1000,1000,2,1000,,,100,no
z,c,1000,1000,1,500,,,100,yes
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    nodes, running = tmp_path / "n.csv", tmp_path / "r.csv"
    nodes.write_text(NODES)
    running.write_text(RUNNING)
    return ["--nodes", str(nodes), "--running", str(running)]


def ask(files: list[str], *more: str):
    done = CliRunner().invoke(simulate_app, ["whatif", *files, *more])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_moves_nodes_and_a_smaller_request_are_told_with_the_lists_names(files: list[str]) -> None:
    told = json.loads(ask(files, "--gpus", "8", "--json").output)

    assert not told["fits"]
    assert told["moves"]["moves"] == [{"task": "x", "from": "a", "to": "b", "gpus": [2, 3, 4]}]
    assert told["moves"]["then"][0]["node"] == "a"
    assert told["moves"]["gpu_seconds_lost"] == 27_000
    assert told["moves"]["fewest"]
    assert told["nodes"] == [{"count": 1, "like": "a", "gpus": 8, "model": "A"}]
    assert told["request"] == {"gpus": 6}


def test_in_words(files: list[str]) -> None:
    said = ask(files, "--gpus", "8").output
    assert "1 running task moved to other nodes (x)" in said
    assert "x: a -> b" in said
    assert "1 more node like a with 8 GPUs of A" in said


def test_who_ran_too_short_a_time_is_left_where_it_is(files: list[str]) -> None:
    assert json.loads(ask(files, "--gpus", "8", "--after-s", "10000", "--json").output)["moves"] is None


def test_what_fits_fits(files: list[str]) -> None:
    assert "fits as it is" in ask(files, "--gpus", "6").output


def test_a_gang_and_models(files: list[str]) -> None:
    told = json.loads(ask(files, "--gpus", "2", "--tasks", "6", "--model", "A", "--json").output)
    assert told["request"]["tasks"] == 5
    told = json.loads(ask(files, "--gpus", "4", "--model", "B", "--json").output)
    assert told["wishes"] == [{"wish": "models", "name": ""}]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("w,nowhere,1,1,0,0,,,,", "not in the list of nodes"),
        ("w,c,1,1,2,1000,,,,", "does not fit on c"),
        ("w,c,1,1,0,0,,,,maybe", "not yes or no"),
    ],
)
def test_a_list_that_cannot_be_right_is_told(files: list[str], line: str, wrong: str) -> None:
    path = Path(files[3])
    path.write_text(RUNNING + line + "\n")
    with pytest.raises(CommandError, match=wrong):
        ask(files, "--gpus", "1")
