"""A program is used if it is there in the pinned version; what is missing is one sentence."""

from pathlib import Path

import pytest

from tools.stack import StackError, build, toolbox, versions
from tools.stack.toolbox import TOOLS


def program(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any program."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("DRYSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ("Kubernetes v1.36.3\n", True),
        ("Kubernetes v1.36.0\n", True),
        ("Kubernetes v1.35.3\n", False),
        ("Client Version: v1.32.4-dispatcher\nKustomize Version: v1.36.0\n", False),
        ("", False),
    ],
)
def test_the_minor_version_decides(said: str, fits: bool) -> None:
    assert toolbox.same_minor(said, "1.36.3") is fits


def test_what_is_on_the_path_is_used(empty: Path) -> None:
    path = program(empty / "bin", "kube-apiserver", f"Kubernetes v{versions.KUBERNETES}")
    assert toolbox.find("kube-apiserver") == path


def test_another_version_on_the_path_is_not(empty: Path) -> None:
    program(empty / "bin", "kube-apiserver", "Kubernetes v1.20.0")
    assert toolbox.find("kube-apiserver") is None
    built = toolbox.cached(TOOLS["kube-apiserver"])
    program(built.parent, built.name, "")
    assert toolbox.find("kube-apiserver") == built


def test_the_named_folder_comes_before_the_path(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(empty / "bin", "etcd", f"etcd Version: {versions.ETCD}")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(empty / "assets"))
    path = program(empty / "assets", "etcd", f"etcd Version: {versions.ETCD}")
    assert toolbox.find("etcd") == path


def test_what_is_there_is_not_built(empty: Path) -> None:
    lines: list[str] = []
    path = program(empty / "bin", "redis-server", "")
    assert build.ensure(["redis-server"], lines.append) == {"redis-server": path}
    assert lines == []


@pytest.mark.parametrize(
    ("name", "client"),
    [("etcd", "`go`"), ("kafka", "`mvn`"), ("java", "`java`"), ("redis-server", "`apt-get`")],
)
def test_a_missing_client_is_one_sentence(empty: Path, name: str, client: str) -> None:
    with pytest.raises(StackError, match=client) as caught:
        build.ensure([name], lambda _: None)
    assert "\n" not in str(caught.value)


def test_a_failed_build_leaves_nothing_that_looks_finished(empty: Path) -> None:
    fails = program(empty / "bin", "go", "cannot reach anything")
    fails.write_text("#!/bin/sh\necho cannot reach anything\nexit 1\n", encoding="utf-8")
    with pytest.raises(StackError, match="cannot reach anything"):
        build.ensure(["etcd"], lambda _: None)
    assert toolbox.find("etcd") is None


def test_a_build_appears_in_the_cache(empty: Path) -> None:
    go = program(empty / "bin", "go", "")
    # Stands for the compiler: writes a program where it is told to.
    go.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho built > "$2"\n',
        encoding="utf-8",
    )
    lines: list[str] = []
    found = build.ensure(["etcd"], lines.append)
    assert found["etcd"] == toolbox.cached(TOOLS["etcd"])
    assert found["etcd"].read_text(encoding="utf-8") == "built\n"
    assert lines[0].startswith(f"etcd {versions.ETCD}: building")
