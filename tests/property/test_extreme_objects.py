"""Objects that the API server takes, however large their numbers and long their texts, from the raw bytes to a claim
and back: nothing raises, every job ends as a placement or as a verdict, and all sums are those of plain integers.

The path is the services' own: the watcher's picture, facts and hints over the wire, placement's view and engine, and
the ledger with its Lua.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.oddities import EXTREME_ANNOTATIONS, extreme_fields, hostile_fields, pod_spec
from libs.contracts.events import ClusterFact, PodFact, TasksBatch
from libs.contracts.submission import parse_submit
from libs.contracts.tenants import TenantPolicy
from libs.domain import keys
from libs.domain.bounds import MOST_ASKED, MOST_DEVICES, MOST_EXTRA, MOST_OFFERED, MOST_QUOTA
from libs.domain.plans import Plan
from libs.domain.verdicts import Kind, Reason
from libs.engine.api import EngineConfig
from libs.engine.core import PlacementEngine
from libs.kube import trainingjobs
from libs.store.embedded import embedded_ledger
from libs.store.pages import all_holders, all_use
from services.placement.decide import Tenure, plan_of, words
from services.placement.jobs import Pending
from services.placement.view import View
from services.watcher.decide import Picture
from tests.unit.libs.kube.objects_for_tests import raw_node, raw_pod

AMOUNTS = ("0", "1", "500m", "9E", "8Ei", "9223372036854775807", "9223372036854776", "1073741824m", "1073741825m",
           "1Pi", "1n", "1e30", "1e-30", "1e400", "9" * 5_000, "0" * 200 + "1", "8388608Ti", 1, 10**30,
           1e30, 0.1)  # fmt: skip
RESOURCES = ("cpu", "memory", keys.GPU_RESOURCE, "ephemeral-storage", "hugepages-2Mi", "example.com/other",
             "nvidia.com/gpumem", "nvidia.com/gpucores")  # fmt: skip
NUMBERS = ("0", "1", "80000", "9" * 10, "9" * 19, "9" * 63, "9" * 5_000, "-1", "1e9", "", "0,1", "1024")

quantities = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(AMOUNTS), max_size=4)
containers = st.lists(
    st.builds(
        lambda limits, requests: {"name": "c", "resources": {"limits": limits, "requests": requests}},
        quantities,
        quantities,
    ),
    min_size=1,
    max_size=3,
)
annotations = st.one_of(
    st.just({}),
    st.sampled_from(EXTREME_ANNOTATIONS),
    st.dictionaries(
        st.sampled_from([keys.GPUS, keys.GPU_MIB, keys.GPU_MILLI, keys.GPU_FRACTION, keys.GPU_MEMORY, keys.GANG_MIN,
                         keys.EXPECTED, keys.CHECKPOINT, keys.TASK, keys.GROUP_SIZE]),
        st.sampled_from(NUMBERS),
        max_size=3,
    ),
)  # fmt: skip


@st.composite
def pod_specs(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()):
        spec = pod_spec()
        fields = [*extreme_fields(spec), *hostile_fields(spec)]
        for where, name, value in draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3)):
            where[name] = value
        spec.pop("nodeName", None)
        return {**spec, "schedulerName": keys.SCHEDULER_NAME}
    spec = {"containers": draw(containers)}
    if draw(st.integers(0, 3)) == 0:
        spec |= {"initContainers": draw(containers), "overhead": draw(quantities)}
    return spec


nodes = st.builds(
    lambda n, allocatable, labels, said: raw_node(
        f"n{n}",
        allocatable=allocatable,
        labels={**labels, "kubernetes.io/hostname": f"n{n}"},
        meta={"annotations": {keys.NVLINK_GROUPS: said}},
    ),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from((*RESOURCES, "pods")), st.sampled_from(AMOUNTS), max_size=6),
    st.dictionaries(
        st.sampled_from(["nvidia.com/gpu.memory", "nvidia.com/gpu.replicas", "nvidia.com/gpu.count", "zone"]),
        st.sampled_from([n for n in NUMBERS if len(n) <= 63]),
        max_size=3,
    ),
    st.sampled_from(["", "0-3;4-7", ",".join(["0-9999"] * 30_000), "0;" * 100_000]),
)
running = st.builds(
    lambda n, spec, said, node, ours: raw_pod(
        f"run{n}", said, **{**spec, "nodeName": node, "schedulerName": keys.SCHEDULER_NAME if ours else "other"}
    ),
    st.integers(0, 5), pod_specs(), annotations, st.sampled_from(["n0", "n1", "gone"]), st.booleans(),
)  # fmt: skip
waiting = st.builds(
    lambda n, spec, said: raw_pod(f"wait{n}", {k: v for k, v in said.items() if k not in keys.RESULTS}, **spec),
    st.integers(0, 3), pod_specs(), annotations,
)  # fmt: skip
queues = st.builds(
    lambda name, limits, deserved, seconds: msgspec.json.encode(
        {
            "metadata": {"name": name, "uid": name, "resourceVersion": "3"},
            "spec": {"limits": limits, "deserved": deserved, "minRunSeconds": seconds, "evictNoticeSeconds": seconds,
                     "namespaces": ["team-a"]},
        }
    ),
    st.sampled_from(["a", "b"]), quantities, quantities, st.sampled_from([0, 2**31, 2**63 - 1]),
)  # fmt: skip
templates = st.builds(lambda spec, said: {"metadata": {"annotations": said}, "spec": spec}, pod_specs(), annotations)


def submitted(number: int, template: dict[str, Any]) -> bytes | None:
    """The object that an event ends as; None where it is rejected."""
    said = {"id": f"job{number}", "roles": [{"template": template, "replicas": 2}]}
    taken = parse_submit(msgspec.json.encode(said), TenantPolicy(pod_security="baseline"))
    if not hasattr(taken, "spec"):
        return None
    body = msgspec.json.decode(trainingjobs.manifest("team-a", f"job{number}", taken.spec, {}, {}))
    body["metadata"] |= {"uid": f"u{number}", "resourceVersion": "4", "creationTimestamp": "2026-11-30T06:00:00Z"}
    return msgspec.json.encode(body)


def applied(number: int, template: dict[str, Any]) -> bytes:
    """The same, made through the Kubernetes API, which looks at no template."""
    meta = {"name": f"own{number}", "namespace": "team-a", "uid": f"o{number}", "resourceVersion": "4"}
    return msgspec.json.encode({"metadata": meta, "spec": {"roles": [{"name": "w", "template": template}]}})


Raws = list[bytes]


async def through(all_nodes: Raws, bound: Raws, pods: Raws, all_queues: Raws, objects: Raws) -> None:
    faults: list[Exception] = []
    picture = Picture(1, {}, faulty=lambda _of, error: faulty_raises(faults, error))
    picture.queue_list(all_queues)
    for raw in all_nodes:
        picture.guarded(picture.node_event, "ADDED", raw)
    for raw in (*bound, *pods):
        picture.guarded(picture.pods.event, "ADDED", raw)
    for raw in objects:
        picture.guarded(picture.job_event, "ADDED", raw)
    assert not faults, faults
    changes = picture.take()
    ledger = embedded_ledger()
    await ledger.open()
    generation = (await ledger.begin_rebuild(1)).generation
    await ledger.nodes_seen(list(changes.nodes.values()), 1)
    await ledger.queues_seen(list(changes.queues.values()), [], 1)
    await ledger.tasks_seen(list(changes.bound.values()), 1)
    await ledger.whole(1)
    epoch = (await ledger.take(0)).epoch
    for node in changes.nodes.values():
        assert max(node.cpu, node.mem, node.pods) <= MOST_OFFERED
        assert len(node.gpus) <= MOST_DEVICES
        assert max(node.extra.values(), default=0) <= MOST_EXTRA
    for queue in changes.queues.values():
        said = (queue.gpu_milli, queue.cpu, queue.mem, queue.deserved.gpu_milli, *queue.models.values())
        assert all(amount is None or amount <= MOST_QUOTA for amount in said)
    # As placement reads it: everything has been over the wire.
    view = View(lambda: PlacementEngine(EngineConfig(consolidate=True)))
    for fact in changes.facts.values():
        read = msgspec.json.decode(msgspec.json.encode(fact), type=ClusterFact)
        view.see(read, 1.0)
        if isinstance(read, PodFact):
            charge = read.charge
            assert max(charge.cpu, charge.mem, *(g.mib for g in charge.gpus)) <= MOST_ASKED
            assert charge.blind <= MOST_DEVICES
            assert max((amount for _, amount in read.extra), default=0) <= MOST_EXTRA
    nodes_before, queues_before = await all_use(ledger)
    charged = list(changes.bound.values())
    for name in {seen.node for seen in charged}:
        on = [seen.charge for seen in charged if seen.node == name]
        use = nodes_before[name]
        assert (use.cpu, use.mem, use.pods) == (sum(c.cpu for c in on), sum(c.mem for c in on), len(on))
        assert use.blind == sum(c.blind for c in on)
    view.use(nodes_before.values(), queues_before.values())
    pending = Pending()
    hints = msgspec.json.encode(TasksBatch(tuple(h.event("9") for h in changes.hints.values() if h.tasks)))
    for change in msgspec.json.decode(hints, type=TasksBatch).items:
        pending.merge(change, 0, 1.0)
    jobs = [pending.to_engine(job, may_evict=True) for job in pending.jobs.values()]
    engine = view.engine
    decisions = engine.decide(jobs, 1.8e9)
    assert {d.job for d in decisions} == set(pending.jobs)
    plans: list[Plan] = []
    tenure = Tenure(0, epoch, generation)
    for decision in decisions:
        job = pending.jobs[decision.job]
        assert len(words(decision.verdict)) <= 1000
        msgspec.json.encode(decision.verdict)
        if decision.placements and not decision.victims:
            plans.append(plan_of(job, decision.placements, tenure, gang=len(decision.placements) > 1))
            assert decision.leftover or not any(task.unsupported for task in job.tasks.values())
        elif not decision.placements:
            assert decision.verdict.kind in (Kind.NOT_NOW, Kind.NEVER)
            assert decision.verdict.reason is not Reason.FAULT
            engine.reserve(pending.to_engine(job, may_evict=True), 1.8e9)
            engine.borrows(pending.to_engine(job, may_evict=True), 1.8e9)
    answers = await ledger.commit([msgspec.json.decode(msgspec.json.encode(plan), type=Plan) for plan in plans])
    engine.settle()
    for plan, answer in zip(plans, answers, strict=True):
        assert set(answer.taken) == {a.claim for a in plan.assignments}, (plan, answer.refused)
    for job in pending.jobs.values():
        engine.helps(pending.to_engine(job, may_evict=False), 1.8e9)
    nodes_after, queues_after = await all_use(ledger)
    view.use(nodes_after.values(), queues_after.values())
    engine.decide(jobs, 1.8e9 + 1)
    engine.settle()
    for node in changes.nodes.values():
        if use := nodes_after.get(node.name):
            placed = [a for plan in plans for a in plan.assignments if a.node == node.name]
            was = nodes_before.get(node.name)
            assert use.cpu == (was.cpu if was else 0) + sum(a.charge.cpu for a in placed)
    await ledger.release([a.claim for plan in plans for a in plan.assignments], generation)
    await ledger.tasks_gone([seen.uid for seen in charged], 1)
    assert await all_holders(ledger) == []
    nodes_left, queues_left = await all_use(ledger)
    assert all((n.cpu, n.mem, n.pods, n.blind) == (0, 0, 0, 0) for n in nodes_left.values())
    assert all((q.cpu, q.mem, q.gpu_milli) == (0, 0, 0) for q in queues_left.values())
    await ledger.close()


def faulty_raises(faults: list[Exception], error: Exception) -> None:
    faults.append(error)


@given(
    st.lists(nodes, min_size=1, max_size=3),
    st.lists(running, max_size=5),
    st.lists(waiting, max_size=4),
    st.lists(queues, max_size=2),
    st.lists(templates, max_size=2),
)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_the_api_server_takes_ends_as_a_placement_or_a_verdict(
    all_nodes: Raws, bound: Raws, pods: Raws, all_queues: Raws, said: list[dict[str, Any]]
) -> None:
    objects = [raw for n, one in enumerate(said) if (raw := submitted(n, one)) is not None]
    objects += [applied(n, one) for n, one in enumerate(said)]
    good = raw_pod("good", limits={"cpu": "1"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy tells of overflows by warnings
        asyncio.run(through(all_nodes, bound, [*pods, good], all_queues, objects))
