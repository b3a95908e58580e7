"""The secured mode of the local stack: who may do what, and where its secrets lie."""

import re
import shutil
import ssl
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from libs.host.settings import CommonSettings
from tools.stack import ALL, StackInfo, accounts
from tools.stack.parts import PARTS
from tools.stack.parts.kafka import _credentials, _properties
from tools.stack.parts.redis import LEDGER_RULES, users
from tools.stack.settings import Settings
from tools.stack.stack import _port_names

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def info(tmp_path: Path) -> StackInfo:
    names = _port_names(list(PARTS.values()))
    return StackInfo(
        directory=tmp_path,
        settings=Settings(parts=ALL, secured=True),
        ports={name: 20_000 + number for number, name in enumerate(names)},
        tokens=accounts.new_tokens(),
        processes={},
        passwords=accounts.new_passwords(),
    )


def test_it_is_loaded_as_it_was_saved(info: StackInfo) -> None:
    info.save()
    assert StackInfo.load(info.directory) == info


def test_no_listener_of_kafka_is_open_and_nobody_is_let_in_for_want_of_a_rule(info: StackInfo) -> None:
    said = _properties(info)
    assert "PLAINTEXT" not in said
    assert "allow.everyone.if.no.acl.found=false" in said
    assert "listener.name.controller.ssl.client.auth=required" in said
    assert "ANONYMOUS" not in said
    named = re.findall(r"name=([a-z-]+),", " ".join(_credentials(info)))
    assert named == list(accounts.PRINCIPALS)
    open_ = replace(info, settings=Settings(parts=ALL), passwords={})
    assert _credentials(open_) == []
    assert "SASL" not in _properties(open_)


def test_redis_users_are_kept_by_digest_and_the_default_user_is_off(info: StackInfo) -> None:
    said = users(info)
    assert "user default off" in said
    assert not [password for password in info.passwords.values() if password in said]
    assert "metrics-collector" not in said, "it has no business with the ledger"
    command = PARTS["redis"].command(info, {"redis-server": Path("/bin/redis-server")})
    assert command[command.index("--port") + 1] == "0", "nothing is served in the clear"


def test_a_user_of_the_ledger_may_run_exactly_the_commands_that_the_ledger_runs() -> None:
    """Commands in the Lua are quoted words; the client adds those that it sends itself."""
    lua = "".join(path.read_text() for path in (ROOT / "libs/store/lua").glob("*.lua"))
    words = set(re.findall(r"'([A-Z]{3,})'", lua)) - {"COUNT", "LIMIT", "MATCH", "MAXLEN"}
    own = {"info", "config|get", "fcall", "xread", "function|load", "function|list", "function|delete"}
    allowed = set(re.findall(r"\+([a-z|]+)", LEDGER_RULES))
    assert allowed == {word.lower() for word in words} | own
    assert "-@all" in LEDGER_RULES
    assert "+@connection" in LEDGER_RULES
    assert LEDGER_RULES in (ROOT / "docs/operations.md").read_text().replace("\n", " ")


def test_what_a_service_is_told_are_settings_that_it_has(info: StackInfo) -> None:
    named = {name.removeprefix("DRYSTONE_").lower() for name in info.environment_for("binder")}
    assert named <= CommonSettings.model_fields.keys()
    assert replace(info, settings=Settings(parts=ALL)).environment_for("binder") == {}


def test_certificates_are_for_the_loopback_address_and_only_the_owner_reads_the_keys(info: StackInfo) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    info.certificates.make(Path(openssl))
    first = info.certificates.both.read_text()
    info.certificates.make(Path(openssl))
    assert info.certificates.both.read_text() == first
    for file in (info.certificates.both, info.certificates.key):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ssl.create_default_context(cafile=info.certificates.authority).load_cert_chain(info.certificates.both)
