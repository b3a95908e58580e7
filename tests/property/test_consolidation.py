"""Laws of moving running tasks so that a waiting job fits, on any small cluster; and a search through all plans there
are, by a model of its own, that finds no shorter one."""

from collections import Counter
from itertools import combinations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.domain.jobs import JobHead, Wishes
from libs.domain.resources import WHOLE
from libs.engine.api import EngineConfig, PendingJob, RunningTask
from libs.engine.consolidate.board import largest_first
from libs.engine.consolidate.keeping import Keeping
from libs.engine.consolidate.movers import Movers
from libs.engine.consolidate.plan import Moves, plan_moves
from libs.engine.core import PlacementEngine
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod, request

MIB = 1000  # of a device, so that milli and MiB agree


def facts_of(sizes: list[int], tasks: list[tuple[int, int, int, bool]], seed: int) -> ClusterBuilder:
    """Nodes with so many GPUs; tasks (GPUs, share, CPU, movable) wherever they fit, scattered by the seed."""
    facts = cluster()
    for i, gpus in enumerate(sizes):
        facts.node(f"n{i}", gpus=gpus, mib=MIB, cpu=4000 + 4000 * (i % 2), mem=100_000)
    for at, (gpus, share, cpu, movable) in enumerate(tasks):
        order = sorted(facts.nodes, key=lambda name: (seed * 7919 + at * 104_729 + hash_of(name)) % 101)
        for name in order:
            use = facts._use(name)
            free = [WHOLE - milli for milli, _ in use.gpus]
            room = sum(f == WHOLE for f in free) >= gpus if gpus else (not share or max(free) >= share)
            if room and facts.nodes[name].cpu - use.cpu >= cpu:
                wishes = Wishes(request(gpus, share, cpu=cpu, mem=100)) if movable else None
                facts.running(f"r{at}", gpus, on=name, share=share, cpu=cpu, mem=100, wishes=wishes, started=float(at))
                break
    return facts


def hash_of(name: str) -> int:
    return sum(map(ord, name)) * 31


def planned(facts: ClusterBuilder, job: PendingJob, now: float = 10_000.0) -> Moves | None:
    engine = facts.into(PlacementEngine(EngineConfig()))
    session = engine._session
    session.begin(now)
    before = engine.free_room()
    plan = plan_moves(session, job, Movers(session, job.head, 600.0))
    assert engine.free_room() == before, "planning left something behind"
    assert not session.running.marked
    return plan


def without(facts: ClusterBuilder, gone: set[str]) -> ClusterBuilder:
    """The same cluster, told to a fresh builder, without these pods."""
    left = cluster()
    left.nodes = dict(facts.nodes)
    left.queues = dict(facts.queues)
    for task in facts.pods:
        if task.uid not in gone:
            left.used(task.node, task.charge)
            left.pods.append(task)
    return left


def fits(facts: ClusterBuilder, job: PendingJob) -> bool:
    return bool(facts.into(PlacementEngine(EngineConfig())).decide([job])[0].placements)


def overfull(facts: ClusterBuilder) -> bool:
    for name, use in facts.uses.items():
        node = facts.nodes[name]
        if use.cpu > node.cpu or use.mem > node.mem or any(milli > WHOLE or mib > MIB for milli, mib in use.gpus):
            return True
    return False


def holds_as_planned(facts: ClusterBuilder, job: PendingJob, plan: Moves) -> None:
    """After the moves, by a fresh engine: the job fits, and each moved task where the plan says."""
    after = without(facts, {move.pod.uid for move in plan.moves})
    assert fits(after, job)
    for placement in plan.placements:
        assert placement.node in after.into(PlacementEngine()).takers(placement.task)
        after.used(placement.node, placement.charge)
    for move in plan.moves:
        task = Movers(PlacementEngine()._session, job.head).as_task(move.pod)
        assert move.target in after.into(PlacementEngine()).takers(task), f"{move.pod.name} does not fit as planned"
        after.used(move.target, move.charge)
    assert not overfull(after)


# -- all plans there are -----------------------------------------------------------------------------------------------

Item = tuple[int, int, int, int]  # GPUs, share, CPU, the node that it leaves or -1
Room = list[tuple[int, list[int]]]  # per node: CPU, milli per device


def item_of(facts: ClusterBuilder, task: RunningTask) -> Item:
    gpu, source = task.wishes.request.gpu, list(facts.nodes).index(task.node)
    return (0, gpu.milli, task.charge.cpu, source) if gpu.milli else (gpu.count, 0, task.charge.cpu, source)


def packs(room: Room, items: list[Item]) -> bool:
    """Whether all items fit at once, tried in every way."""
    if not items:
        return True
    (gpus, share, cpu, source), rest = items[0], items[1:]
    for at, (free, devices) in enumerate(room):
        if free < cpu or (gpus and at == source):
            continue
        if gpus:
            idle = [i for i, milli in enumerate(devices) if milli == WHOLE]
            ways = [idle[:gpus]] if len(idle) >= gpus else []
        elif share:
            levels = {milli: i for i, milli in enumerate(devices) if milli >= share}
            ways = [[i] for i in levels.values()]
        else:
            ways = [[]]
        for way in ways:
            after = list(devices)
            for i in way:
                after[i] -= WHOLE if gpus else share
            if packs([*room[:at], (free - cpu, after), *room[at + 1 :]], rest):
                return True
    return False


def fewest(facts: ClusterBuilder, job_items: list[Item], most: int) -> int | None:
    movable = [task for task in facts.pods if task.wishes is not None]
    for count in range(most + 1):
        for some in combinations(movable, count):
            gone = {task.uid for task in some}
            left = without(facts, gone)
            room: Room = [
                (node.cpu - left._use(name).cpu, [WHOLE - milli for milli, _ in left._use(name).gpus])
                for name, node in left.nodes.items()
            ]
            if packs(room, sorted([*job_items, *(item_of(facts, task) for task in some)], reverse=True)):
                return count
    return None


SIZES = st.lists(st.sampled_from([2, 4]), min_size=2, max_size=4)
WHOLE_TASK = st.tuples(st.sampled_from([1, 1, 2, 3]), st.just(0), st.sampled_from([500, 1000, 2000]), st.booleans())
SHARED_TASK = st.tuples(st.just(0), st.sampled_from([300, 500, 700]), st.sampled_from([500, 1000]), st.just(True))


@settings(max_examples=100, deadline=None)
@given(SIZES, st.lists(WHOLE_TASK, min_size=2, max_size=9), st.integers(0, 100), st.integers(1, 4))
def test_no_plan_for_one_task_has_fewer_moves(sizes, tasks, seed, gpus):
    facts = facts_of(sizes, tasks, seed)
    job = pod("new", gpus=gpus, cpu=1000, mem=100)
    plan = planned(facts, job)
    least = fewest(facts, [(gpus, 0, 1000, -1)], 4)
    if plan is None:
        assert least is None, f"there is a plan of {least} moves"
        return
    if least is not None:
        assert len(plan.moves) == least
    holds_as_planned(facts, job, plan)


@settings(max_examples=100, deadline=None)
@given(
    SIZES,
    st.lists(st.one_of(WHOLE_TASK, SHARED_TASK), min_size=2, max_size=9),
    st.integers(0, 100),
    st.sampled_from([(1, 0), (2, 0), (4, 0), (0, 500), (0, 900)]),
)
def test_where_devices_are_shared_a_plan_has_one_move_too_many_at_most(sizes, tasks, seed, wish):
    """The model may give a share any device; a plan knows only the one that the engine would give."""
    facts = facts_of(sizes, tasks, seed)
    job = pod("new", gpus=wish[0], share=wish[1], cpu=1000, mem=100)
    plan = planned(facts, job)
    least = fewest(facts, [(wish[0], wish[1], 1000, -1)], 3)
    if plan is None:
        assert least is None or least > 1, f"there is a plan of {least} moves"
        return
    if least is not None:
        assert len(plan.moves) <= least + 1
    holds_as_planned(facts, job, plan)


@settings(max_examples=80, deadline=None)
@given(
    SIZES,
    st.lists(st.one_of(WHOLE_TASK, SHARED_TASK), min_size=2, max_size=9),
    st.integers(0, 100),
    st.integers(2, 4),
    st.sampled_from([1, 2]),
)
def test_a_gang_gets_in_by_moves_of_which_none_is_superfluous(sizes, tasks, seed, members, gpus):
    facts = facts_of(sizes, tasks, seed)
    job = gang("new", members, gpus=gpus, cpu=500, mem=100)
    plan = planned(facts, job)
    least = fewest(facts, [(gpus, 0, 500, -1)] * members, 3)
    if plan is None:
        assert least is None, f"there is a plan of {least} moves"
        return
    if least is not None:
        assert len(plan.moves) <= least + 1
    holds_as_planned(facts, job, plan)
    gone = {move.pod.uid for move in plan.moves}
    for move in plan.moves:
        engine = without(facts, gone - {move.pod.uid}).into(PlacementEngine())
        names = Movers(engine._session, job.head)
        others = largest_first([other.pod for other in plan.moves if other is not move])
        left = [PendingJob(JobHead(other.uid, "t", "team"), (names.as_task(other),)) for other in others]
        came = [bool(engine.decide([one])[0].placements) for one in (job, *left)]
        assert not all(came), f"{move.pod.name} could have stayed"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 4),
    st.lists(st.sampled_from([(1, 0, 500, True), (1, 0, 500, True), (2, 0, 500, False)]), min_size=3, max_size=9),
    st.integers(0, 100),
    st.lists(st.sampled_from([2, 3, 4, 4]), min_size=1, max_size=3),
)
def test_whoever_moves_finds_room_and_nobody_is_moved_to_and_fro(nodes, tasks, seed, wishes):
    """Jobs wait, tasks move for them, come again as new pods and are placed like any other, all in one line."""
    facts = facts_of([4] * nodes, tasks, seed)
    waiting = [pod(f"new{i}", gpus=gpus, cpu=500, mem=100, created=float(i)) for i, gpus in enumerate(wishes)]
    origin: dict[str, str] = {}
    moves: Counter[str] = Counter()
    now, keeping = 10_000.0, Keeping()
    for step in range(12):
        engine = facts.into(PlacementEngine(EngineConfig(consolidate=True, consolidate_after_s=600.0)))
        engine._session.keeping = keeping
        decisions = engine.decide(waiting, now + step)
        again: list[PendingJob] = []
        for job, decision in zip(waiting, decisions, strict=True):
            gone = {victim.uid for victim in decision.victims}
            assert decision.rule == "consolidate" or not gone
            for task in [task for task in facts.pods if task.uid in gone]:
                name = origin.get(task.name, task.name)
                moves[name] += 1
                fresh = pod(f"{name}+{step}", created=now + step)
                origin[fresh.tasks[0].name] = name
                asked = msgspec.structs.replace(fresh.tasks[0], request=task.wishes.request)
                head = msgspec.structs.replace(fresh.head, workload=task.workload or task.job)
                again.append(msgspec.structs.replace(fresh, head=head, tasks=(asked,)))
            facts = without(facts, gone)
            for placement in decision.placements:
                task = placement.task
                facts.used(placement.node, placement.charge)
                facts.pods.append(
                    RunningTask(task.id, task.name, "team", placement.node, job.head.key, "default", 0,
                                placement.charge, True, started=now + step, wishes=Wishes(task.request),
                                workload=job.head.workload)
                )  # fmt: skip
        placed = {job.head.key for job, decision in zip(waiting, decisions, strict=True) if decision.placements}
        assert not overfull(facts)
        waiting = [job for job in waiting if job.head.key not in placed] + again
        if not again and not placed:
            break
    else:
        raise AssertionError("it never settles")
    assert all(count == 1 for count in moves.values())
    assert not [job for job in waiting if job.tasks[0].name in origin], "who moved for somebody waits"
