"""The real parts, started once per run, for tests marked `real`; each test works in a namespace of its own."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tools.stack import Stack, StackInfo


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """API server, etcd, Kafka, Redis, Prometheus, garbage collector and fake kubelets, with manifests and topics."""
    from tools.load import apply_base, create_topics

    running = Stack(
        tmp_path_factory.mktemp("stack"),
        parts=("etcd", "apiserver", "kafka", "redis", "prometheus", "controller-manager", "kwok"),
    )
    info = running.up()
    try:
        apply_base(info)
        create_topics(info)
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
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("services")
