"""`drystone topics`: Drystone's topics on a broker, created and checked. Nothing that exists is changed."""

from __future__ import annotations

import asyncio

import typer

from cli.main import CommandError
from libs.bus.admin import create_topics, ensure_topics
from libs.bus.port import BusMisconfigured, BusUnavailable
from libs.contracts.topics import ALL
from libs.host.open import kafka_settings
from libs.host.settings import CommonSettings, WrongSettings, read_settings


def check(bootstrap: str, *, create: bool, replicas: int) -> int:
    """Exit code 0 when every topic is as it must be; 1 with a list of what is not. How to authenticate is read from
    the environment, as the services read it."""
    try:
        settings = read_settings(CommonSettings).model_copy(update={"kafka_bootstrap": bootstrap})
        drift = asyncio.run(ensure_topics(kafka_settings("topics", settings), create=create, replicas=replicas))
    except (WrongSettings, BusUnavailable, BusMisconfigured) as error:
        raise CommandError(str(error)) from error
    for found in drift:
        typer.echo(f"drift: {found}")
    if not drift:
        typer.echo(f"{len(ALL)} topics are as they must be")
    return 1 if drift else 0


def ensure(bootstrap: str) -> None:
    """Make the topics on a broker of our own, that has one node and no security."""
    try:
        asyncio.run(create_topics(bootstrap))
    except (BusUnavailable, BusMisconfigured) as error:
        raise CommandError(str(error)) from error
