"""How the command line reaches the API server, Kafka and Redis: as the caller.

The API server by the caller's own kubeconfig; Kafka and Redis by the same DRYSTONE_* variables that services read
(accounts, passwords, certificates), so that no secret stands on a command line.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import yaml

from cli.errors import CommandError
from libs.bus.settings import KafkaSettings
from libs.host.open import kafka_settings, redis_ledger
from libs.host.settings import CommonSettings, WrongSettings, are_brokers, read_settings
from libs.kube.client import KubeClient
from libs.kube.errors import BadConfiguration, ReadFailed
from libs.kube.outcomes import why
from libs.kube.port import Answer, Kube
from libs.observe import logs
from libs.store.redis import RedisLedger

T = TypeVar("T")
_NAMESPACE: Final = "default"


def settings() -> CommonSettings:
    try:
        found = read_settings(CommonSettings)
    except WrongSettings as error:
        raise CommandError(str(error)) from None
    logs.hide(*found.secrets)
    return found


def kafka(bootstrap: str, *, check_topics: bool = True) -> KafkaSettings:
    """`bootstrap` stands before the variable of the same name."""
    if not are_brokers(bootstrap):
        raise CommandError(f"--bootstrap is host:port, several separated by commas, not {bootstrap!r}")
    found = kafka_settings("cli", settings())
    # What goes wrong is told in one sentence; the client's own words before it would only be in the way.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    return replace(found, bootstrap=bootstrap, source="drystone/cli", check_topics=check_topics)


def ledger(url: str) -> RedisLedger:
    """`url` stands before the variable of the same name."""
    return redis_ledger(settings().model_copy(update={"redis_url": url}))


def kubeconfig_path(given: Path | None) -> Path:
    """As given, else the first file of $KUBECONFIG, else the usual place."""
    if given is not None:
        return given
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(named[0]) if named else Path.home() / ".kube" / "config"


def own_namespace(kubeconfig: Path) -> str:
    """The namespace of the kubeconfig's current context, `default` where it names none."""
    try:
        config = yaml.safe_load(kubeconfig.read_text())
        contexts = {entry["name"]: entry["context"] for entry in config["contexts"]}
        return str(contexts[config["current-context"]].get("namespace") or _NAMESPACE)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return _NAMESPACE


def with_cluster(given: Path | None, work: Callable[[Kube, str], Awaitable[T]]) -> T:
    """Run `work(kube, own namespace)`; what the API server refuses becomes one sentence."""
    path = kubeconfig_path(given)

    async def body() -> T:
        try:
            kube = KubeClient.from_kubeconfig(path)
        except BadConfiguration as error:
            raise CommandError(str(error)) from None
        try:
            return await work(kube, own_namespace(path))
        except ReadFailed as error:
            raise CommandError(refused(f"{error.path} cannot be read", error.answer)) from None
        finally:
            await kube.close()

    return asyncio.run(body())


def refused(what: str, answer: Answer) -> str:
    """A sentence about an answer that was no success."""
    if answer.status == 0:
        return f"{what}: the API server does not answer ({answer.body[:200].decode(errors='replace')})"
    return f"{what}: {why(answer)}"
