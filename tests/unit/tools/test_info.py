"""What a stack saves of itself is what another process loads."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tools.stack import StackError, StackInfo, accounts
from tools.stack.info import FILE
from tools.stack.process import ProcessId
from tools.stack.settings import Settings


@pytest.fixture
def info(tmp_path: Path) -> StackInfo:
    return StackInfo(
        directory=tmp_path,
        settings=Settings(
            parts=("etcd", "apiserver", "redis"), audit=True, scrape_interval="2s", extra_args={"redis": ("--x", "1")}
        ),
        ports={"etcd": 20001, "etcd-peer": 20002, "apiserver": 20003, "redis": 20004},
        tokens=accounts.new_tokens(),
        processes={"redis": ProcessId(12, 3456)},
    )


def test_round_trip(info: StackInfo) -> None:
    info.save()
    assert StackInfo.load(info.directory) == info


def test_saving_again_replaces(info: StackInfo) -> None:
    info.save()
    later = replace(info, processes={})
    later.save()
    assert StackInfo.load(info.directory) == later
    assert [path.name for path in info.directory.iterdir()] == [FILE]


def test_others_cannot_read_the_secrets(info: StackInfo) -> None:
    info.save()
    assert stat.S_IMODE((info.directory / FILE).stat().st_mode) == 0o600


def test_addresses(info: StackInfo) -> None:
    assert info.api_server == "https://127.0.0.1:20003"
    assert info.redis_url == "redis://127.0.0.1:20004/0"
    assert info.address("etcd", "peer") == "127.0.0.1:20002"
    assert info.audit_log == info.directory / "apiserver" / "audit.log"
    assert info.pids == {"redis": 12}
    assert info.log_files["redis"] == info.directory / "log" / "redis.log"
    assert info.admin_token == info.tokens["admin"]


def test_addresses_of_parts_that_are_not_there(info: StackInfo) -> None:
    assert info.prometheus_url is None
    assert replace(info, settings=Settings(parts=info.parts)).audit_log is None
    with pytest.raises(StackError, match="without kafka"):
        _ = info.kafka_bootstrap


def test_a_kubeconfig_by_short_or_full_name(info: StackInfo) -> None:
    short = info.kubeconfig_for("binder")
    assert short == info.kubeconfig_for("system:serviceaccount:drystone-system:binder")
    assert short != info.kubeconfig == info.kubeconfig_for("admin")
    with pytest.raises(StackError, match="No account nobody"):
        info.kubeconfig_for("nobody")


def test_a_folder_without_a_stack(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="No stack in"):
        StackInfo.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"directory": "/x"}'])
def test_a_file_of_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(StackError, match="is not a stack"):
        StackInfo.load(tmp_path)
