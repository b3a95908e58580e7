"""What is said to help does help: each remedy is applied to a fresh cluster, and the job then fits."""

import msgspec

from libs.domain.jobs import Wishes
from libs.domain.rules import NodeTerm, Requirement, Rules
from libs.engine.api import EngineConfig, PendingJob
from libs.engine.core import PlacementEngine
from libs.engine.whatif import FewerWishes, MoreQuota, SmallerRequest, WhatIf, said
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod, request

NOW = 100_000.0


def ask(facts: ClusterBuilder, job: PendingJob) -> WhatIf:
    engine = facts.into(PlacementEngine(EngineConfig()))
    before = engine.free_room()
    answer = engine.what_if(job, NOW)
    assert engine.free_room() == before
    assert engine.what_if(job, NOW) == answer
    return answer


def fits(facts: ClusterBuilder, job: PendingJob) -> bool:
    return bool(facts.into(PlacementEngine(EngineConfig())).decide([job])[0].placements)


def busy() -> ClusterBuilder:
    """Two nodes of eight GPUs with five and six idle."""
    facts = cluster().node("a").node("b")
    facts.running("x", 3, on="a", wishes=Wishes(request(3)), started=0.0)
    facts.running("y", 2, on="b", wishes=Wishes(request(2)), started=0.0)
    return facts


def test_what_fits_needs_no_help():
    assert ask(busy(), pod("p", gpus=6)) == WhatIf(True)


def test_a_task_for_a_whole_node_is_told_of_the_move_the_node_and_the_largest_request():
    answer = ask(busy(), pod("p", gpus=8))

    assert answer.moves is not None
    assert [move.pod.name for move in answer.moves.moves] == ["x"] or [m.pod.name for m in answer.moves.moves] == ["y"]
    assert [(more.count, more.gpus) for more in answer.nodes] == [(1, 8)]
    assert answer.request == (SmallerRequest("gpus", 6, 8),)
    assert fits(busy(), pod("p", gpus=6))
    assert not fits(busy(), pod("p", gpus=7))


def test_as_many_nodes_are_named_as_let_a_gang_in_and_no_more():
    job = gang("g", 7, gpus=4)

    answer = ask(busy(), job)

    assert [(more.count, more.like) for more in answer.nodes] == [(3, "a")]
    for count in (2, 3):
        facts = busy()
        for i in range(count):
            facts.node(f"new-{i}")
        assert fits(facts, job) is (count == 3)


def test_every_shape_of_node_has_its_own_number():
    facts = busy().node("small", gpus=2)
    facts.running("z", 2, on="small")

    answer = ask(facts, gang("g", 7, gpus=2, cpu=1000))

    assert {more.gpus: more.count for more in answer.nodes} == {8: 1, 2: 2}


def test_a_shape_that_could_not_take_the_task_is_not_named():
    facts = busy().node("small", gpus=2)

    assert [more.like for more in ask(facts, pod("p", gpus=8)).nodes] == ["a"]


def test_a_gang_is_told_how_large_it_may_be():
    answer = ask(busy(), gang("g", 7, gpus=4))

    assert SmallerRequest("tasks", 2, 7) in answer.request
    assert SmallerRequest("gpus", 1, 4) in answer.request
    assert fits(busy(), gang("g", 7, gpus=1))
    assert not fits(busy(), gang("g", 7, gpus=2))


def test_a_share_is_told_the_largest_share():
    facts = cluster().node("a", gpus=1)
    facts.running("x", share=700, on="a")

    answer = ask(facts, pod("p", share=500))

    assert answer.request == (SmallerRequest("gpu-milli", 300, 500),)


def test_where_cpu_is_short_the_cpu_is_named():
    facts = cluster().node("a", cpu=4000)
    facts.running("x", cpu=3000, on="a")

    answer = ask(facts, pod("p", gpus=1, cpu=2000))

    assert answer.request == (SmallerRequest("cpu", 1000, 2000),)


def test_a_queue_that_is_short_is_told_by_how_much():
    facts = busy()
    facts.queue("default", gpus=7)

    answer = ask(facts, pod("p", gpus=4))

    assert answer.quota == (MoreQuota("default", 2000, 0, 0),)
    assert answer.request == (SmallerRequest("gpus", 2, 4),)
    assert answer.moves is None
    assert said(answer) == ("2 GPUs more in the limit of queue default", "asking for 2 GPUs per task")


def test_a_selector_that_stands_alone_in_the_way_is_named():
    facts = busy()

    answer = ask(facts, pod("p", gpus=4, selector={"zone": "west", "kubernetes.io/hostname": "a"}))

    assert answer.wishes == (FewerWishes("selector", "zone"),)


def test_a_taint_is_named_with_its_effect():
    facts = busy().node("c", taints=["team=ml:NoSchedule"])

    answer = ask(facts, pod("p", gpus=8))

    assert FewerWishes("toleration", "team=ml:NoSchedule") in answer.wishes
    assert fits(facts, pod("p", gpus=8, tolerations=["team=ml:NoSchedule"]))


def test_models_and_affinity_are_named():
    job = pod("p", gpus=4, models=["H100"])
    assert ask(busy(), job).wishes == (FewerWishes("models"),)
    rules = Rules(node=(NodeTerm(labels=(Requirement("zone", "In", ("west",)),)),))
    assert ask(busy(), pod("p", gpus=4, rules=rules)).wishes == (FewerWishes("affinity"),)


def test_a_gang_with_too_few_pods_needs_pods_and_nothing_else():
    job = gang("g", 2, gpus=4)
    short = msgspec.structs.replace(job, head=msgspec.structs.replace(job.head, gang_min=3))

    assert ask(busy(), short) == WhatIf(False)


def test_words_have_no_commas_so_that_they_can_be_listed():
    words = said(ask(busy(), gang("g", 7, gpus=4)))

    assert words
    assert not any("," in word for word in words)


def test_a_question_between_passes_changes_no_decision():
    facts = busy()
    asked, unasked = (facts.into(PlacementEngine(EngineConfig())) for _ in range(2))
    asked.what_if(gang("g", 7, gpus=4), NOW)
    jobs = [pod(f"p{i}", gpus=1 + i % 3, created=float(i)) for i in range(8)]

    assert [d.placements for d in asked.decide(jobs)] == [d.placements for d in unasked.decide(jobs)]
    assert asked.learned() == unasked.learned()
