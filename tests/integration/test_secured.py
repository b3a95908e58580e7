"""Kafka with accounts, access lists and TLS, Redis with users and TLS: each service under its own principal does its
work; who is not let in is told so in one sentence; and no secret is written anywhere."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from cli.acls import allow
from libs.bus.admin import ensure_topics
from libs.bus.kafka import KafkaBus
from libs.bus.port import BusMisconfigured, BusUnavailable, Outgoing
from libs.bus.settings import KafkaSettings
from libs.contracts import topics
from libs.contracts.access import rules, tenant_rules
from libs.contracts.events import EventType
from libs.host.open import redis_ledger
from libs.host.settings import CommonSettings
from libs.store.port import LedgerMisconfigured, LedgerUnavailable
from tools.fleet import SERVICES, Fleet, Member, tail
from tools.load import Load, apply_base, kafka_of, node_object, pod_object
from tools.stack import Stack, StackInfo

pytestmark = pytest.mark.real

JOB = {"id": "from-tenant-a", "roles": [{"replicas": 2, "template": {"image": "train:1", "resources": {"gpu": 1}}}]}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    parts = ("etcd", "apiserver", "kafka", "redis", "prometheus")
    with Stack(tmp_path_factory.mktemp("secured"), parts=parts, secured=True) as info:
        apply_base(info)
        yield info


def settings(info: StackInfo, account: str) -> CommonSettings:
    fields = {name.removeprefix("DRYSTONE_").lower(): value for name, value in info.environment_for(account).items()}
    return CommonSettings(kafka_bootstrap=info.kafka_bootstrap, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def bus_of(info: StackInfo, account: str) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus(replace(kafka_of(info, account), check_topics=False))
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()


def drystone(info: StackInfo, *arguments: str) -> str:
    """The command line as an administrator of the brokers uses it."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("drystone")), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **info.environment_for("admin"), "DRYSTONE_KAFKA_BOOTSTRAP": info.kafka_bootstrap},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def ended(member: Member) -> tuple[int, list[str]]:
    """Exit code, and what it said apart from its structured log."""
    async with asyncio.timeout(30):
        while member.process.poll() is None:  # noqa: ASYNC110 - a process has no event
            await asyncio.sleep(0.05)
    lines = member.log.read_text().splitlines()
    return int(member.process.returncode), [line for line in lines if not line.startswith("{")]


async def health(member: Member, sentence: str) -> None:
    """Until the member says this at /readyz."""

    def said() -> str:
        try:
            with urlopen(f"http://127.0.0.1:{member.port}/readyz", timeout=1) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""

    async with asyncio.timeout(30):
        while sentence not in await asyncio.to_thread(said):  # noqa: ASYNC110 - it is asked, not told
            await asyncio.sleep(0.1)


def written_secrets(info: StackInfo, logs: Path) -> list[str]:
    """Files of logs with a password or a token in them."""
    secrets = [*info.passwords.values(), *info.tokens.values(), "not-the-password"]
    files = [*logs.iterdir(), *(info.directory / "log").iterdir()]
    assert len(files) >= len(SERVICES) + 5
    return [f"{file.name}: {secret[:3]}..." for file in files for secret in secrets if secret in file.read_text()]


async def test_each_under_its_own_account_and_nobody_else(secured: StackInfo, tmp_path: Path) -> None:
    info, logs = secured, tmp_path / "services"
    said = await asyncio.to_thread(drystone, info, "topics", "--create", "--allow", "")
    assert "User:binder READ topic drystone.plans" in said
    assert said.splitlines()[-1] == "topics are as they must be"
    # The console's account stands for one whose list was made by hand, and lacks the group.
    lacking = [rule for rule in rules("preemptor", "User:console") if rule.resource != "GROUP"]
    await allow(kafka_of(info, "admin"), [*lacking, *tenant_rules("User:tenant-a", topics.JOBS.name)])
    async with Fleet(info, logs) as fleet, Load.of(info) as load:
        await fleet.start(limit_s=60.0)
        wrong = {"DRYSTONE_KAFKA_SASL_PASSWORD": "not-the-password"}
        locked_out = {"DRYSTONE_REDIS_PASSWORD": "not-the-password"}
        refused = {
            "its name or its password is wrong": fleet.spawn("binder", "1", **wrong),
            "Redis does not let us in": fleet.spawn("watcher", "1", **locked_out),
            "describe the topic": fleet.spawn("binder", "2", **_kafka_of(info, "tenant-a")),
        }
        ungrouped = fleet.spawn("preemptor", "1", **_kafka_of(info, "console"))

        await load.create_nodes([node_object("n1", gpus=4)])
        async with load.count_bound() as count:
            await load.create_pods([pod_object(f"p{n}") for n in range(2)])
            async with bus_of(info, "tenant-a") as bus:
                event = Outgoing("drystone.jobs", "from-tenant-a", json.dumps(JOB).encode(), EventType.JOB_SUBMIT)
                await bus.publisher().publish([event])
            await count.reach(4, 30)
        for sentence, member in refused.items():
            code, said = await ended(member)
            assert code == 2, tail(member.log)
            assert len(said) == 1, said
            assert sentence in said[0]
            fleet.members.remove(member)
        await health(ungrouped, "join the group drystone-preemptor: its access list lacks it")
        assert fleet.members[0].ready()

        # What an account may not: another's topic, the ledger, Redis beyond the ledger.
        async with bus_of(info, "metrics-collector") as bus:
            with pytest.raises(
                BusUnavailable, match=r"let the account metrics-collector use the topic drystone\.plans"
            ):
                await bus.publisher().publish([Outgoing("drystone.plans", "k", b"{}", EventType.PLANS)])
        with pytest.raises(BusMisconfigured, match="does not let the account tenant-a describe"):
            await ensure_topics(kafka_of(info, "tenant-a"), create=False)
        ledger = redis_ledger(settings(info, "metrics-collector"))
        with pytest.raises(LedgerMisconfigured, match="does not let us in"):
            await ledger.open()
        await ledger.close()
    assert written_secrets(info, logs) == []


def _kafka_of(info: StackInfo, account: str) -> dict[str, str]:
    return {name: value for name, value in info.environment_for(account).items() if "KAFKA" in name}


async def test_a_user_of_the_ledger_reaches_nothing_but_the_ledger(secured: StackInfo) -> None:
    import redis.asyncio as redis
    from redis.exceptions import NoPermissionError

    client = redis.Redis.from_url(
        secured.redis_url,
        username="binder",
        password=secured.passwords["binder"],
        ssl_ca_certs=str(secured.certificates.authority),
    )
    try:
        for command in (
            ("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "1"), ("KEYS", "*"), ("GET", "other"), ("ACL", "LIST"),
            ("HSET", "other", "a", "b"), ("SHUTDOWN",), ("EVAL", "return 1", "0"), ("FUNCTION", "FLUSH"), ("MONITOR",),
        ):  # fmt: skip
            with pytest.raises(NoPermissionError):
                await client.execute_command(*command)
    finally:
        await client.aclose()


async def test_nobody_reads_the_wire_or_comes_without_an_account(secured: StackInfo) -> None:
    with pytest.raises(BusUnavailable):
        await ensure_topics(KafkaSettings(secured.kafka_bootstrap, request_s=3.0), create=False)
    plain = secured.redis_url.replace("rediss://", "redis://")
    ledger = redis_ledger(CommonSettings(redis_url=plain))
    with pytest.raises(LedgerUnavailable):
        await ledger.open()
    await ledger.close()
