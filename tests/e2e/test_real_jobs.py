"""Job events from another system, on the running services: made into jobs, once, or refused with a reason."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libs.contracts.topics import JOBS
from libs.domain import keys
from libs.domain.jobs import Phase
from libs.kube import trainingjobs, writes
from tests.e2e.world import Pods, World

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


def event(job: dict[str, Any]) -> tuple[str, bytes]:
    return job["id"], json.dumps(job).encode()


def whole(tasks: int):
    return lambda pods: len(pods) == tasks and all(p.view.node for p in pods.values())


async def pods_of(world: World, id: str, tasks: int) -> Pods:
    selector = f"{keys.JOB}={world.object_name(id)}"
    return await world.until(whole(tasks), namespace=world.job_namespace, selector=selector)


async def test_an_event_becomes_an_object_and_pods_born_bound_in_few_writes(world: World) -> None:
    await world.nodes(2)
    id = f"few-writes-{world.namespace}"
    since = world.audited()
    async with world.listening() as heard:
        await world.publish(event(world.job(id, 10)))
        pods = await pods_of(world, id, 10)
        await heard.until(lambda heard: any(s.phase is Phase.RUNNING for s in heard.about(id)))
    assert len({(p.view.node, p.gpus) for p in pods.values()}) == 10
    assert all(p.view.training_job is not None for p in pods.values())
    view = await world.until_job(id, lambda view: view.status.phase is Phase.RUNNING)
    assert view.status.bound == 10
    await asyncio.sleep(1.0)  # what might still be written
    wrote = world.our_writes(since, world.object_name(id))
    assert len(wrote) <= 10 + 2, wrote
    assert wrote.count("binder create pods/") == 10
    assert not [w for w in wrote if "binding" in w]


async def test_the_same_event_three_times_is_one_job(world: World) -> None:
    await world.nodes(1)
    id = f"thrice-{world.namespace}"
    said = event(world.job(id, 4))
    async with world.listening() as heard:
        await world.publish(said, said, said)
        await heard.until(lambda heard: sum(s.reason == "Duplicate" for s in heard.about(id)) == 2)
        pods = await pods_of(world, id, 4)
        assert not [letter for letter in heard.letters if letter.id == id]
    assert sorted(p.view.index for p in pods.values()) == [0, 1, 2, 3]
    listed = await writes.list_all(world.load.kube, trainingjobs.path(world.job_namespace))
    assert len([raw for raw in listed.items if trainingjobs.parse(raw).spec.id == id]) == 1


async def test_what_cannot_be_served_is_refused_with_a_reason_and_the_partition_goes_on(world: World) -> None:
    await world.nodes(1)
    base = f"bad-{world.namespace}"

    def bad(name: str, **changes: Any) -> dict[str, Any]:
        return {**world.job(f"{base}-{name}", 1), **changes}

    privileged = bad("privileged")
    privileged["roles"][0]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] = True
    host = bad("host")
    host["roles"][0]["template"]["spec"]["hostPID"] = True
    forged = bad("forged")
    forged["roles"][0]["template"]["metadata"] = {"annotations": {keys.GPUS: "0,1"}}
    negative = bad("negative")
    negative["roles"][0]["replicas"] = -1
    huge = bad("huge")
    huge["roles"][0]["replicas"] = 50_000
    large = bad("large")
    large["roles"][0]["template"]["spec"]["x"] = [1e16] * 60_000  # written out by the API server: beyond its store
    events = {
        "unknown": event(bad("unknown", colour="red")),
        "privileged": event(privileged),
        "host": event(host),
        "forged": event(forged),
        "negative": event(negative),
        "huge": event(huge),
        "tenant": event(bad("tenant", namespace="kube-system")),
        "nan": (f"{base}-nan", b'{"id":"%s-nan","gangMin":NaN,"roles":[]}' % base.encode()),
        "bytes": (f"{base}-bytes", b"\xff\xfe\x00{"),
        "deep": (f"{base}-deep", b'{"id":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        "empty": (f"{base}-empty", b"{}"),
        "large": event(large),
    }
    good, after = f"{base}-good", f"{base}-after"
    other = world.job(good, 2)
    async with world.listening() as heard:
        await world.publish(event(world.job(good, 1)), event(other), *events.values(), partition=5)
        await world.publish((f"{base}-type", b"{}"), type="some.other.thing.v1", partition=5)
        await world.publish(event(world.job(after, 1)), partition=5)
        await pods_of(world, good, 1)
        await pods_of(world, after, 1)
        refused = {key for key, _ in events.values()} | {f"{base}-type"}
        await heard.until(lambda heard: refused <= {s.id for s in heard.statuses if s.phase is Phase.REJECTED})
        letters = {letter.key: letter for letter in heard.letters}
        assert refused <= letters.keys()
        assert all(letters[key].reason and letters[key].topic == JOBS.name for key in refused)
        reused = [letter for letter in heard.letters if letter.key == good]
        assert [letter.reason for letter in reused] == ["id: this id was used for another job"]
        assert any(s.phase is Phase.REJECTED for s in heard.about(good))
        for key, word in (("privileged", "privileged"), ("host", "host namespaces"), ("forged", keys.GPUS),
                          ("unknown", "no such field"), ("tenant", "no namespace kube-system"),
                          ("huge", "50000 tasks"), ("large", "the API server would keep")):  # fmt: skip
            assert word in letters[f"{base}-{key}"].reason
    assert (await world.job_object(good)).replicas == 1, "the first content stays"


async def test_pods_that_the_api_server_refuses_are_told_with_its_sentence_and_end_the_job(world: World) -> None:
    await world.nodes(1)
    base = f"refused-{world.namespace}"
    name, field, wide = (world.job(f"{base}-{what}", 1) for what in ("name", "field", "wide"))
    name["roles"][0]["template"]["spec"]["containers"][0]["name"] = "Not A Name"
    field["roles"][0]["template"]["spec"]["containers"][0]["resorces"] = {"limits": {"cpu": "1"}}
    # Far more in hints than one record takes.
    wide["roles"][0] |= {"replicas": 1000, "min": 1}
    wide["roles"][0]["template"]["metadata"] = {"labels": {f"example.com/label-{n}": "v" * 50 for n in range(60)}}
    poison = "\x00" * 900_000  # six times as long in JSON
    async with world.listening() as heard:
        await world.publish((poison, b"rubbish"), *map(event, (name, field)), partition=7)
        await heard.until(lambda heard: any(letter.key.startswith("\x00" * 100) for letter in heard.letters))
        for job, words in ((name, "a lowercase RFC 1123 label"), (field, 'field "spec.containers[0].resorces"')):
            view = await world.until_job(job["id"], lambda view: view.status.phase is Phase.FAILED)
            assert view.status.reason == "RefusedByServer"
            assert words in view.status.message
            assert "would help: a pod template that the API server takes" in view.status.message
            await heard.until(lambda heard, id=job["id"]: Phase.FAILED in [s.phase for s in heard.about(id)])
            assert "Accepted" in [s.reason for s in heard.about(job["id"])]
        await world.publish(event(wide), partition=7)
        await pods_of_at_least(world, wide["id"], 1)
        await heard.until(lambda heard: "Accepted" in [s.reason for s in heard.about(wide["id"])])
        assert not [letter for letter in heard.letters if letter.id.startswith(base)]
    assert all(member.process.poll() is None for member in world.fleet.members)


async def test_events_of_a_job_whose_name_somebody_holds_are_in_nobodys_way(world: World) -> None:
    """Whoever may edit job objects can make one under the name that an event's will have, and never let it go."""
    await world.nodes(1)
    stuck, good = f"stuck-{world.namespace}", f"beside-{world.namespace}"
    name, kube = world.object_name(stuck), world.load.kube
    path = trainingjobs.path(world.job_namespace, name)
    body = json.loads(trainingjobs.manifest(world.job_namespace, name, {"roles": world.job("x", 1)["roles"]}, {}, {}))
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await kube.call("POST", trainingjobs.path(world.job_namespace), json.dumps(body).encode())
    assert (await kube.call("DELETE", path)).ok
    async with world.listening() as heard:
        try:
            await world.publish(event(world.job(stuck, 1)), partition=4)
            await asyncio.sleep(0.5)  # it is parked by then
            await world.publish(*[event(world.job(stuck, 1))] * 150, event(world.job(good, 1)), partition=4)
            await pods_of(world, good, 1)
            await heard.until(lambda heard: sum(s.reason == "TooManyWaiting" for s in heard.about(stuck)) == 51)
        finally:
            free = b'{"metadata":{"finalizers":null}}'
            await kube.call("PATCH", path, free, content_type=writes.MERGE)
        await heard.until(lambda heard: sum(s.reason == "Duplicate" for s in heard.about(stuck)) == 99)
        assert sum(s.reason == "Accepted" for s in heard.about(stuck)) == 1
        assert len([letter for letter in heard.letters if letter.id == stuck]) == 51


async def pods_of_at_least(world: World, id: str, tasks: int) -> None:
    selector = f"{keys.JOB}={world.object_name(id)}"
    await world.until(
        lambda pods: sum(bool(p.view.node) for p in pods.values()) >= tasks,
        namespace=world.job_namespace, selector=selector,
    )  # fmt: skip


async def test_a_user_submits_asks_why_and_cancels_with_the_command_line(world: World, tmp_path: Path) -> None:
    id = f"by-hand-{world.namespace}"
    file = tmp_path / "job.json"
    file.write_text(json.dumps(world.job(id, 3, namespace=world.namespace)))

    async def drystone(*arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [str(Path(sys.executable).with_name("drystone")), *arguments, "--kubeconfig", str(world.info.kubeconfig)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "submitted" in await drystone("submit", str(file))
    assert "already submitted" in await drystone("submit", str(file))
    name = trainingjobs.object_name(world.namespace, id)
    await world.until_job(name, lambda view: bool(view.status.reason), namespace=world.namespace)
    record = json.loads(await drystone("why", f"{world.namespace}/{id}", "--json"))
    assert (record["phase"], record["bound"], record["tasks"]) == ("Pending", 0, 3)
    assert record["reason"] == "Unschedulable"
    await world.nodes(1)
    await world.until(whole(3))
    record = json.loads(await drystone("why", f"{world.namespace}/{id}", "--json"))
    assert sorted(p["gpus"] for p in record["placed"]) == ["0", "1", "2"]
    assert {p["node"] for p in record["placed"]} == set(world.node_names)
    (row,) = json.loads(await drystone("status", f"{world.namespace}/{id}", "--json"))
    assert (row["phase"], row["bound"]) == ("Running", 3)
    assert "cancelled" in await drystone("cancel", f"{world.namespace}/{id}")
    # The garbage collector looks for new kinds of owners every 30 s.
    await world.until(lambda pods: not pods, within_s=75)
