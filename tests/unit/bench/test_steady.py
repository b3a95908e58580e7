"""What is concluded from a stream of pods: recovery after a fault, and pods that survive an API server that is away."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from bench.steady import Meta, Owners, Pod, Recovery, Seen, Spec, Steady, recovery
from libs.domain import keys
from libs.kube.port import Answer, WatchBroken


def stream(*pods: tuple[float, float]) -> list[Seen]:
    return [Seen(accepted, bound) for accepted, bound in pods]


def test_a_part_that_nobody_missed():
    pods = stream((8, 8.1), (9, 9.1), (10, 10.1), (11, 11.2))
    assert recovery(pods, 9.5, 20.0, 1.0) == Recovery(
        pytest.approx(0.6), 0.0, pytest.approx(1.1), pytest.approx(0.2), 0
    )


def test_half_of_the_jobs_wait_for_the_session_of_a_dead_replica():
    """The other half are bound as ever: gaps are short, and yet it is not healed before the last late one is bound."""
    pods = stream((9, 9.1), (10.2, 10.3), (10.4, 22.0), (12, 12.1), (15, 22.5), (17, 17.1), (23, 23.1))
    found = recovery(pods, 10.0, 30.0, 1.0)
    assert found.first_s == pytest.approx(0.3)
    assert found.healed_s == pytest.approx(12.5)
    assert found.gap_s == pytest.approx(5.0), "from 12.1 to 17.1 something else was bound"
    assert found.wait_s == pytest.approx(11.6)


def test_a_pod_that_was_accepted_before_the_fault_and_bound_late_counts():
    assert recovery(stream((9.9, 15.0)), 10.0, 30.0, 1.0).healed_s == pytest.approx(5.0)


def test_what_was_bound_before_the_fault_says_nothing():
    found = recovery(stream((1, 9.0), (10.5, 10.6)), 10.0, 30.0, 1.0)
    assert (found.healed_s, found.wait_s) == (0.0, pytest.approx(0.1))


def test_pods_that_were_never_bound_are_lost():
    found = recovery(stream((11, 0.0), (12, 12.1)), 10.0, 30.0, 1.0)
    assert found.lost == 1
    assert recovery(stream((29.9, 0.0)), 10.0, 30.0, 1.0).lost == 0, "it came just now"


def test_nothing_is_bound_any_more():
    found = recovery(stream((9, 9.5), (11, 0.0)), 10.0, 30.0, 1.0)
    assert (found.first_s, found.gap_s, found.lost) == (float("inf"), 20.0, 1)


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Moody:
    """An API server that refuses the first creates and deletes, and binds what it has accepted."""

    def __init__(self) -> None:
        self.refuse = 3
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.collected: list[str] = []
        self.crowds: dict[str, list[str]] = {}
        self.watches = 0
        self.binds = True
        self.hidden = ""

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "",
        timeout_s: float = 5.0,
    ) -> Answer:
        if method == "GET":
            return Answer(200, b'{"metadata":{"resourceVersion":"1"},"items":[]}')
        if self.refuse:
            self.refuse -= 1
            return Answer(503, b"", unsure=True)
        if method == "POST":
            metadata = json.loads(body or b"{}")["metadata"]
            self.created.append(metadata["name"])
            self.crowds.setdefault(metadata["labels"].get("crowd", ""), []).append(metadata["name"])
            return Answer(201, b"{}")
        if params is not None:
            self.collected.append(params["labelSelector"])
        else:
            self.deleted.append(path.rpartition("/")[2])
        return Answer(200, b"{}")

    async def watch(
        self, path: str, *, params: Mapping[str, str], silence_s: float = 60.0
    ) -> AsyncIterator[tuple[str, bytes]]:
        self.watches += 1
        if self.watches == 1:
            raise WatchBroken("the server is away")
        told = 0
        while True:
            for name in self.created[told:]:
                pod = {
                    "metadata": {"name": name, "resourceVersion": "2"},
                    "spec": {"nodeName": "node-1" if self.binds and name != self.hidden else ""},
                }
                yield "MODIFIED", json.dumps(pod).encode()
            told = len(self.created)
            await asyncio.sleep(0.01)

    async def close(self) -> None: ...


async def test_pods_are_made_again_until_the_server_agrees_and_go_after_their_time():
    kube = Moody()
    steady = Steady(kube, rate=50.0, life_s=0.05)
    running = asyncio.create_task(steady.run())
    try:
        await until(lambda: len(kube.deleted) >= 3)
        assert await steady.quiet(0.05, 0.5, 5.0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(set(kube.created)) == len(kube.created), "a refused create is tried again under the same name"
    assert set(kube.deleted) <= set(kube.created)
    assert all(pod.wait >= 0 for pod in steady.pods.values() if pod.bound)


async def test_pods_that_were_made_together_go_by_one_call_when_all_of_them_are_bound():
    kube = Moody()
    kube.refuse = 0
    steady = Steady(kube, rate=100.0, life_s=0.05, together_s=0.2)
    running = asyncio.create_task(steady.run())
    try:
        await until(lambda: len(kube.collected) >= 2)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert kube.deleted == []
    assert len(set(kube.collected)) == len(kube.collected)
    for selector in kube.collected:
        crowd = kube.crowds[selector.removeprefix("run=steady,crowd=")]
        assert all(steady.pods[name].bound for name in crowd)


async def test_a_pod_that_is_never_bound_keeps_those_beside_it_and_no_others():
    kube = Moody()
    kube.refuse = 0
    kube.hidden = "steady-1"
    steady = Steady(kube, rate=100.0, life_s=0.05, together_s=0.2)
    running = asyncio.create_task(steady.run())
    try:
        await until(lambda: len(kube.collected) >= 2)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    collected = {name for s in kube.collected for name in kube.crowds[s.removeprefix("run=steady,crowd=")]}
    assert collected and "steady-1" not in collected


def pod(name: str, devices: str) -> Pod:
    return Pod(Meta(name=name, annotations={keys.GPUS: devices}), Spec(nodeName="node-1"))


def test_a_device_with_two_owners_is_noticed_until_the_first_is_gone():
    owners = Owners()
    owners.promised(pod("a", "0,3"))
    owners.promised(pod("a", "0,3"))
    owners.promised(pod("b", "1"))
    owners.promised(pod("c", "3"))
    assert owners.twice == ["device promised twice: node-1/3, a and c"]
    owners.gone("a")
    owners.promised(pod("d", "0"))
    assert len(owners.twice) == 1


def test_a_pod_that_leaves_slowly_is_not_taken_for_a_new_one():
    steady = Steady(Moody(), rate=1.0)
    steady._look(pod("a", "0"))
    bound = steady.pods["a"].bound
    steady.forget(bound + 60.0)
    steady._look(pod("a", "0"))
    assert steady.pods["a"].bound == bound
    steady._gone("a")
    steady.forget(bound + 60.0)
    assert steady.pods == {}


async def test_a_creator_that_is_held_back_says_so():
    kube = Moody()
    kube.refuse = 0
    kube.binds = False
    steady = Steady(kube, rate=200.0, most=2)
    running = asyncio.create_task(steady.run())
    try:
        await until(lambda: steady.held_back > 0)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert steady.made == 2, "what waits to be accepted counts too"
