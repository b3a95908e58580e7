"""The real parts and services that tests marked `real` share, started once per run; each test has its own namespace.

Tests of what cannot be shared (other accounts, an API server or Redis that goes away, chaos) start parts of their own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.stack import Stack, StackInfo

if TYPE_CHECKING:
    from tests.e2e.world import World
    from tools.fleet import Fleet


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """API server, etcd, Kafka, Redis, Prometheus, garbage collector and fake kubelets, with manifests and topics."""
    from tools.load import apply_base, create_topics

    running = Stack(
        tmp_path_factory.mktemp("stack"),
        parts=("etcd", "apiserver", "kafka", "redis", "prometheus", "controller-manager", "kwok"),
        audit=True,
    )
    info = running.up()
    try:
        apply_base(info)
        _aside(create_topics, info)
        yield running
    finally:
        running.down()


@pytest.fixture(scope="session")
def info(stack: Stack) -> StackInfo:
    return stack.info


@pytest.fixture
async def namespace(info: StackInfo) -> AsyncIterator[str]:
    """A namespace of the test's own; its pods and jobs are gone afterwards."""
    from tools.load import Load

    name = f"t-{uuid.uuid4().hex[:8]}"
    async with Load.of(info) as load:
        await load.create_all(
            "/api/v1/namespaces", [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}]
        )
        yield name
        await load.delete_jobs(name)
        await load.delete_pods(name)


@pytest.fixture(scope="session")
def fleet(info: StackInfo, logs: Path) -> Iterator[Fleet]:
    """The five services, one replica of each, as processes under their own accounts."""
    from tools.fleet import Fleet

    running = Fleet(info, logs)
    try:
        _aside(lambda: asyncio.run(running.start(limit_s=90.0)))
        yield running
    finally:
        running.stop()


@pytest.fixture
async def world(info: StackInfo, fleet: Fleet, namespace: str) -> AsyncIterator[World]:
    """Nodes, pods, queues and jobs of one test on the running system; afterwards the laws hold and nothing is left."""
    from tests.e2e.world import World

    async with World.of(info, fleet, namespace) as opened:
        yield opened
        await opened.holds()


def _aside(work: Callable[..., object], *arguments: object) -> None:
    """In a thread of its own: asyncio.run would take away the event loop that the plugin has set for this one."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(work, *arguments).result()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("services")
