"""The commands themselves: what a wrong file, name or address gives is one sentence and status 1, never a trace."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from cli.access import kafka
from cli.errors import CommandError
from cli.jobs import cancel, status, submit, why
from cli.out import logs_aside, show
from libs.contracts.topics import ALL, JOBS, with_job_topics
from libs.kube.embedded import EmbeddedCluster
from libs.kube.port import Answer
from libs.kube.trainingjobs import object_name


def job(**changes: Any) -> dict[str, Any]:
    return {"id": "first", "roles": [{"replicas": 2, "template": {"image": "train:1"}}], **changes}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EmbeddedCluster:
    """The commands talk to the simulated API server; it keeps its objects from one command to the next."""
    cluster = EmbeddedCluster()

    class Caller:
        async def call(self, *args: Any, **kwargs: Any) -> Answer:
            return await cluster.call(*args, **kwargs)

        async def close(self) -> None:
            return None

    monkeypatch.setattr("cli.access.KubeClient.from_kubeconfig", lambda _path: Caller())
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    return cluster


def said(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "job.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def run(file: Path, namespace: str = "") -> int:
    return submit(file, namespace=namespace)


def test_the_same_job_twice_is_one_and_another_under_its_id_is_refused(
    server: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = object_name("default", "first")
    assert run(said(tmp_path, job())) == 0
    assert run(said(tmp_path, job())) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"default/{name}: submitted",
        f"default/{name}: already submitted",
    ]
    with pytest.raises(CommandError, match="the id first was used for another job"):
        run(said(tmp_path, job(priority="high")))


def test_a_job_goes_where_its_file_says_before_where_the_option_says(
    server: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("named", "option"):
        body = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}).encode()
        assert asyncio.run(server.call("POST", "/api/v1/namespaces", body)).ok
    run(said(tmp_path, job(namespace="named")), namespace="option")
    run(said(tmp_path, job()), namespace="option")
    assert [line.partition("/")[0] for line in capsys.readouterr().out.splitlines()] == ["named", "option"]


@pytest.fixture
def team(server: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedCluster:
    """The caller's kubeconfig names a namespace, as `kubectl config set-context --current --namespace` leaves it."""
    server.add_namespace("team")
    server.add_namespace("other")
    config = tmp_path / "config"
    config.write_text("{current-context: c, contexts: [{name: c, context: {cluster: c, namespace: team}}]}")
    monkeypatch.setenv("KUBECONFIG", str(config))
    return server


def test_every_command_means_the_kubeconfigs_namespace_where_none_is_named(
    team: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = object_name("team", "first")
    run(said(tmp_path, job()))
    status("first")
    why("first")
    cancel("first")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"team/{name}: submitted"
    assert lines[2].startswith(f"team/{name}  Pending  0/2")
    assert lines[3].startswith(f"team/{name}: Pending, 0 of 2 tasks bound")
    assert lines[-1] == f"team/{name}: cancelled"


def test_every_command_means_the_same_by_the_option(
    team: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(said(tmp_path, job()), namespace="other")
    status("first", namespace="other")
    status(namespace="other")
    why("first", namespace="other")
    cancel("first", namespace="other")
    assert not [line for line in capsys.readouterr().out.splitlines() if "team/" in line]
    for command in (status, why, cancel):
        with pytest.raises(CommandError, match="team/first"):
            command("first")
        with pytest.raises(CommandError, match="team/first is not in the namespace other"):
            command("team/first", namespace="other")


def test_all_jobs_are_those_of_all_namespaces_or_of_the_one_that_is_named(
    team: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for namespace in ("team", "other"):
        run(said(tmp_path, job()), namespace=namespace)
    capsys.readouterr()
    status(as_json=True)
    status(namespace="other", as_json=True)
    both, one = capsys.readouterr().out.split("]\n[")
    assert {row["namespace"] for row in json.loads(both + "]")} == {"team", "other"}
    assert {row["namespace"] for row in json.loads("[" + one)} == {"other"}


def test_answers_for_programs(team: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, name = said(tmp_path, job()), object_name("team", "first")
    for new in (True, False):
        submit(file, as_json=True)
        expected = {"id": "first", "namespace": "team", "name": name, "new": new}
        assert json.loads(capsys.readouterr().out) == expected
    cancel("first", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"namespace": "team", "name": name, "cancelled": True}


@pytest.mark.parametrize(("option", "expected"), [("", None), ("other", "other")])
def test_an_event_names_the_namespace_only_if_the_caller_does(
    team: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, expected: str | None
) -> None:
    """The tenant of the topic has its own first namespace, which the caller's kubeconfig knows nothing of."""
    sent: list[bytes] = []

    async def publish(_bootstrap: str, _topic: str, _key: str, raw: bytes) -> None:
        sent.append(raw)

    monkeypatch.setattr("cli.jobs._publish", publish)
    submit(said(tmp_path, job()), kafka=("127.0.0.1:1", "drystone.jobs"), namespace=option)
    assert json.loads(sent[0]).get("namespace") == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- a\n- list", "holds no fields"),
        ("{", "no job in YAML or JSON"),
        ("id: 2026-01-01", "no job in YAML or JSON"),  # YAML's dates are no JSON
        ("id: &a [*a]", "no job in YAML or JSON"),  # a list that holds itself
        (job(colour="red"), "colour: no such field"),
        (job(roles=[]), "roles"),
        (job(namespace="Not A Name"), "is no name of a namespace"),
        (job(namespace=7), "is no name of a namespace"),
        (job(roles=[{"template": {"spec": {"hostPID": True}}}]), "host namespaces are not allowed"),
    ],
)
def test_a_wrong_file_gives_one_sentence(
    server: EmbeddedCluster, tmp_path: Path, content: object, sentence: str
) -> None:
    with pytest.raises(CommandError) as raised:
        run(said(tmp_path, content))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def drystone(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("drystone")), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


def test_without_a_cluster_there_is_one_sentence_and_no_trace(tmp_path: Path) -> None:
    config = tmp_path / "config"
    done = drystone("status", KUBECONFIG=str(config))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drystone: kubeconfig ")
    assert len(done.stderr.splitlines()) == 1
    config.write_text(
        "{current-context: c, contexts: [{name: c, context: {cluster: c}}],"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}"
    )
    done = drystone("why", "job", KUBECONFIG=str(config))
    assert done.returncode == 1
    assert done.stderr.startswith("drystone: ")
    assert "does not answer" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tenants_topics_are_made_and_checked_like_the_others() -> None:
    added = with_job_topics(["a.jobs", "drystone.jobs", "a.jobs"])[len(ALL) :]
    assert [topic.name for topic in added] == ["a.jobs"]
    assert added[0].config(3) == JOBS.config(3)
    assert added[0].partitions == JOBS.partitions


def test_where_json_was_asked_for_a_fault_is_json_too(tmp_path: Path) -> None:
    done = drystone("why", "job", "--json", KUBECONFIG=str(tmp_path / "config"))
    assert done.returncode == 1
    assert done.stderr == f"drystone: {json.loads(done.stdout)['error']}\n"


def test_no_broker_gives_one_sentence_from_topics_too() -> None:
    done = drystone("topics", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("drystone: no broker answers at 127.0.0.1:1: ")
    assert len(done.stderr.splitlines()) == 1


def test_no_broker_gives_one_sentence(tmp_path: Path) -> None:
    done = drystone("submit", str(said(tmp_path, job())), "--kafka", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("drystone: no broker answers at 127.0.0.1:1: ConnectionRefusedError")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("bootstrap", ["nonsense", "", "kafka:", ":9092", "kafka:9092,"])
def test_what_is_no_address_of_a_broker_is_said_to_be_none(bootstrap: str) -> None:
    with pytest.raises(CommandError, match=r"^--bootstrap is host:port, several separated by commas, not '"):
        kafka(bootstrap)


def test_a_report_that_cannot_be_written_costs_a_sentence_and_not_the_figures(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit_s,duration_s,num_gpus\n0,100,1\n5,50,8\n")
    report = tmp_path / "nowhere" / "report.html"
    done = drystone("simulate", "queue", "--jobs", str(jobs), "--nodes", "1", "--report", str(report))
    assert done.returncode == 1
    assert "wait mean" in done.stdout
    assert done.stderr.splitlines()[-1] == f"drystone: {report} cannot be written: No such file or directory"


def test_what_parts_log_stands_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that runs parts of services in its own process, asked for JSON."""
    try:
        logs_aside()
        structlog.get_logger().warning("watch or list failed")
        show({"broken": 0})
    finally:
        structlog.reset_defaults()
    answer, beside = capsys.readouterr()
    assert json.loads(answer) == {"broken": 0}
    assert "watch or list failed" in beside
