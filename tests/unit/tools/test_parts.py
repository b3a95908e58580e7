"""Every part listens on the loopback address only, and starts after what it needs."""

import re
import struct
from pathlib import Path

import pytest

from tools.stack import ALL, DEFAULT, Stack, StackError, StackInfo, accounts
from tools.stack.parts import PARTS, closure
from tools.stack.parts.kafka import _properties, brokers_in, metadata_request
from tools.stack.settings import Settings
from tools.stack.stack import _depth, _port_names
from tools.stack.toolbox import TOOLS


@pytest.fixture
def info(tmp_path: Path) -> StackInfo:
    names = _port_names(list(PARTS.values()))
    return StackInfo(
        directory=tmp_path,
        settings=Settings(parts=ALL),
        ports={name: 20_000 + number for number, name in enumerate(names)},
        tokens=accounts.new_tokens(),
        processes={},
    )


def command(part: str, info: StackInfo) -> list[str]:
    return PARTS[part].command(info, {tool: Path("/bin") / tool for tool in PARTS[part].tools})


def test_parts_bring_what_they_need() -> None:
    assert closure(["scheduler"]) == ("etcd", "apiserver", "scheduler")
    assert closure(["redis", "kafka"]) == ("kafka", "redis")
    assert closure(DEFAULT) == DEFAULT
    assert closure(ALL) == ALL


def test_every_part_comes_behind_what_it_needs() -> None:
    for name, part in PARTS.items():
        for needed in part.after:
            assert ALL.index(needed) < ALL.index(name)
            assert _depth(PARTS[needed]) < _depth(part)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(StackError, match="No part zookeeper"):
        closure(["zookeeper"])


@pytest.mark.parametrize("part", ALL)
def test_the_tools_of_a_part_are_known(part: str) -> None:
    assert set(PARTS[part].tools) <= TOOLS.keys()


@pytest.mark.parametrize("part", ALL)
def test_no_part_listens_outside_the_machine(part: str, info: StackInfo) -> None:
    # Kafka's addresses are in its file, which its command names.
    said = _properties(info) if part == "kafka" else " ".join(command(part, info))
    assert "127.0.0.1" in said
    assert not re.search(r"\b0\.0\.0\.0\b", said.replace("10.0.0.0/24", ""))


@pytest.mark.parametrize(("fsync", "waits"), [(False, False), (True, True)])
def test_etcd_waits_for_the_disk_only_when_asked(info: StackInfo, fsync: bool, waits: bool) -> None:
    chosen = StackInfo(info.directory, Settings(ALL, fsync=fsync), info.ports, info.tokens, {})
    assert ("--unsafe-no-fsync" not in command("etcd", chosen)) is waits


def test_the_audit_log_is_written_only_when_asked(info: StackInfo) -> None:
    audited = StackInfo(info.directory, Settings(ALL, audit=True), info.ports, info.tokens, {})
    assert not [flag for flag in command("apiserver", info) if flag.startswith("--audit")]
    assert f"--audit-log-path={audited.audit_log}" in command("apiserver", audited)


def test_the_token_file_names_user_and_groups(info: StackInfo) -> None:
    lines = accounts.token_file(info.tokens).splitlines()
    assert len(lines) == len(accounts.ACCOUNTS) == len(set(info.tokens.values()))
    binder = next(line for line in lines if line.startswith(info.tokens["binder"]))
    assert binder.split(",", 3)[1:] == [
        "system:serviceaccount:drystone-system:binder",
        "binder",
        '"system:serviceaccounts,system:serviceaccounts:drystone-system,system:authenticated"',
    ]
    assert f"{info.tokens['tenant-a']},tenant-a,tenant-a" in lines


def test_preparing_the_api_server_writes_every_kubeconfig_and_keeps_its_key(info: StackInfo) -> None:
    PARTS["apiserver"].prepare(info, {})
    key = info.directory / "pki" / "service-account.key"
    first = key.read_bytes()
    PARTS["apiserver"].prepare(info, {})
    assert key.read_bytes() == first
    for name, token in info.tokens.items():
        assert f"token: {token}" in info.kubeconfig_for(name).read_text(encoding="utf-8")


def test_preparing_prometheus_keeps_the_targets(info: StackInfo) -> None:
    PARTS["prometheus"].prepare(info, {})
    info.prometheus_targets.write_text('[{"targets": ["127.0.0.1:1"]}]', encoding="utf-8")
    PARTS["prometheus"].prepare(info, {})
    assert "127.0.0.1:1" in info.prometheus_targets.read_text(encoding="utf-8")


def test_the_question_that_kafka_must_answer() -> None:
    request = metadata_request(7)
    size, key, version, correlation = struct.unpack(">ihhi", request[:12])
    assert (size, key, version, correlation) == (len(request) - 4, 3, 1, 7)
    assert brokers_in(struct.pack(">iii", 8, 7, 1), 7) == 1
    assert brokers_in(struct.pack(">iii", 8, 6, 1), 7) == 0
    assert brokers_in(b"", 7) == 0
    assert brokers_in(b"HTTP/1.1 400", 7) == 0


def test_nothing_is_written_before_up(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "stack")
    with pytest.raises(StackError, match="not up"):
        _ = stack.info
    stack.down()
    assert list(tmp_path.iterdir()) == []


def test_arguments_for_a_part_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="Arguments for kwok"):
        Stack(tmp_path, extra_args={"kwok": ["--x"]})


def test_service_accounts_have_the_names_of_the_deployment() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in accounts.SERVICES)
    assert {accounts.ACCOUNTS[name].user.rsplit(":", 1)[1] for name in accounts.SERVICES} == set(accounts.SERVICES)
