"""The engine's feasible nodes are the real kube-scheduler's, on random clusters and pods.

`python -m tools.differential` is the same with more cases; differences by design are in docs/kubernetes-rules.md, and
the generator keeps away from them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from libs.kube.client import KubeClient
from tools.differential.compare import run
from tools.differential.oracle import Extender, free_port, stack
from tools.stack import StackInfo

pytestmark = pytest.mark.real

CASES = 160
FIRST_SEED = 7000


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def scheduler(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackInfo]:
    with stack(tmp_path_factory.mktemp("differential"), port) as info:
        yield info


@pytest.fixture
async def kube(scheduler: StackInfo) -> AsyncIterator[KubeClient]:
    client = KubeClient.from_kubeconfig(scheduler.kubeconfig)
    yield client
    await client.close()


async def test_feasible_nodes_are_those_of_kube_scheduler(kube: KubeClient, port: int) -> None:
    extender = Extender()
    async with asyncio.timeout(120), extender.serving(port):
        result = await run(kube, extender, CASES, FIRST_SEED)
    assert result.differences == []
    # The cases mean something: many have a node and many have none, and every kind of rule was among them.
    assert result.cases >= CASES
    assert result.cases // 4 <= result.placeable <= 3 * result.cases // 4
    asked = {"nodeAffinity", "podAffinity", "podAntiAffinity", "topologySpreadConstraints", "hostPorts", "tolerations",
             "initContainers", "resources", "schedulingGates", "example.com/fpga", "nvidia.com/gpu"}  # fmt: skip
    assert asked <= result.features.keys()
