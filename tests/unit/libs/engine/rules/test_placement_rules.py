"""Rules between pods, ports and other resources, as they decide where pods may go. Told in clusters of a few nodes;
that each rule means what Kubernetes means by it is held by the differential test against kube-scheduler."""

from typing import Any

import pytest

from libs.domain.resources import Charge
from libs.domain.rules import HostPort, NodeTerm, PodTerm, Requirement, Rules, Spread
from libs.domain.verdicts import Kind, Reason, Verdict, Wake
from libs.engine.api import Decision, EngineConfig, RunningTask
from libs.engine.core import PlacementEngine
from libs.engine.rules import book
from libs.testkit.builders import ClusterBuilder, cluster, gang, pod, task

HOST, ZONE = "kubernetes.io/hostname", "zone"


def app(name: str) -> tuple[Requirement, ...]:
    return (Requirement("app", "In", (name,)),)


def near(name: str, by: str = ZONE) -> Rules:
    return Rules(affinity=(PodTerm(by, app(name), ("team",)),))


def apart(name: str, by: str = HOST) -> Rules:
    return Rules(anti_affinity=(PodTerm(by, app(name), ("team",)),))


def zones(**nodes: str) -> ClusterBuilder:
    """Nodes by name with their zone; "" for none."""
    built = cluster()
    for name, zone in nodes.items():
        built.node(name, labels={ZONE: zone} if zone else {})
    return built


def engine_of(facts: ClusterBuilder) -> PlacementEngine:
    return facts.into(PlacementEngine(EngineConfig(weights={"first-fit": 1})))


def decide(facts: ClusterBuilder, *jobs: Any) -> list[Decision]:
    return engine_of(facts).decide(list(jobs))


def nodes_of(decision: Decision) -> list[str]:
    return [placement.node for placement in decision.placements]


def refused(facts: ClusterBuilder, job: Any) -> Verdict:
    decision = decide(facts, job)[0]
    assert not decision.placements
    return decision.verdict


class TestAntiAffinity:
    def test_the_members_of_a_gang_that_keep_apart_each_get_a_node(self) -> None:
        job = gang("g", 3, gpus=1, labels={"app": "g"}, rules=apart("g"))
        assert sorted(nodes_of(decide(zones(a="1", b="1", c="2"), job)[0])) == ["a", "b", "c"]

    def test_a_gang_that_cannot_keep_apart_is_placed_not_at_all_and_more_nodes_would_help(self) -> None:
        verdict = refused(zones(a="1", b="1"), gang("g", 3, gpus=1, labels={"app": "g"}, rules=apart("g")))
        assert (verdict.kind, verdict.reason, verdict.more_nodes_help) == (Kind.NOT_NOW, Reason.GANG_ROOM, True)
        assert verdict.nodes == {Reason.ANTI_AFFINITY: 2}
        assert Wake.PODS_CHANGED in verdict.wakes_on

    def test_a_foreign_pod_that_keeps_others_away_is_heeded_by_pods_without_rules(self) -> None:
        facts = zones(a="1", b="1").running(
            "db", on="a", ours=False, anti_affinity=apart("web", ZONE).anti_affinity, labels={"app": "db"}
        )
        verdict = refused(facts, pod("web", labels={"app": "web"}))
        assert verdict.nodes == {Reason.REPELLED: 2}
        assert nodes_of(decide(facts, pod("other", labels={"app": "other"}))[0]) == ["a"]

    def test_within_one_pass_the_first_pod_keeps_the_second_away(self) -> None:
        one, two = (pod(n, labels={"app": "x"}, rules=apart("x"), created=float(i)) for i, n in enumerate("pq"))
        first, second = decide(zones(a="1"), one, two)
        assert nodes_of(first) == ["a"]
        assert second.verdict.reason is Reason.ANTI_AFFINITY

    def test_an_accepted_pod_keeps_others_away_before_it_is_seen_and_until_it_is_forgotten(self) -> None:
        engine = engine_of(zones(a="1"))
        first = task("p", labels={"app": "x"}, rules=apart("x"))
        [decision] = engine.decide([pod("p", labels={"app": "x"}, rules=apart("x"))])
        engine.assume(first, nodes_of(decision)[0])
        engine.settle()
        rival = task("q", labels={"app": "x"})
        assert engine.takers(rival) == set()
        engine.forget(first.id)
        assert engine.takers(rival) == {"a"}

    def test_what_was_decided_and_not_accepted_is_gone_when_the_pass_is_settled(self) -> None:
        engine = engine_of(zones(a="1"))
        engine.decide([pod("p", labels={"app": "x"}, rules=apart("x"))])
        engine.settle()
        assert engine.takers(task("q", labels={"app": "x"})) == {"a"}

    def test_a_pod_that_was_created_for_a_task_takes_the_place_of_the_task(self) -> None:
        engine = engine_of(zones(a="1", b="1"))
        engine.assume(task("t", labels={"app": "x"}, rules=apart("x")), "a")
        engine.pod_seen(
            RunningTask("pod-uid", "t", "team", "a", "", "", 0, Charge(), ours=True, labels={"app": "x"}, task="uid-t")
        )
        assert engine.assumed() == set()
        engine.pod_gone("pod-uid")
        assert engine.takers(task("q", rules=apart("x"))) == {"a", "b"}


class TestAffinity:
    def test_workers_follow_their_master_into_its_zone_though_they_are_placed_first(self) -> None:
        facts = zones(a="1", b="2", c="2")
        master = pod("m", gpus=1, labels={"app": "m"}, selector={ZONE: "2"})
        workers = gang("w", 2, gpus=8, labels={"app": "w"}, rules=near("m"))
        job = workers.__class__(workers.head, (*workers.tasks, *master.tasks))
        [decision] = decide(facts, job)
        assert {p.task.name: p.node for p in decision.placements}["m"] == "b"
        assert len(decision.placements) < 3 or set(nodes_of(decision)) == {"b", "c"}

    def test_the_first_of_a_group_that_wants_to_be_together_starts_it_and_the_rest_follow(self) -> None:
        facts = zones(a="1", b="2", c="1")
        job = gang("g", 2, gpus=8, labels={"app": "g"}, rules=near("g"))
        assert nodes_of(decide(facts, job)[0]) == ["a", "c"]

    def test_nodes_without_the_topology_are_no_place_for_it(self) -> None:
        verdict = refused(zones(a=""), pod("p", labels={"app": "p"}, rules=near("p")))
        assert (verdict.kind, verdict.nodes) == (Kind.NEVER, {Reason.TOPOLOGY: 1})

    @pytest.mark.parametrize(("by", "runs", "helps"), [(HOST, True, False), (ZONE, False, False), (ZONE, True, True)])
    def test_more_nodes_help_only_where_a_new_node_could_be_near(self, by: str, runs: bool, helps: bool) -> None:
        facts = cluster().node("full", gpus=1, labels={ZONE: "1"}).node("far", gpus=1, labels={ZONE: "2"})
        facts.running("busy", gpus=1, on="full", labels={"app": "m"} if runs else {})
        verdict = refused(facts, pod("p", gpus=1, rules=near("m", by)))
        assert verdict.more_nodes_help is helps


class TestSpread:
    def test_a_gang_is_spread_over_zones_within_its_skew(self) -> None:
        rules = Rules(spread=(Spread(ZONE, 1, app("g")),))
        job = gang("g", 4, gpus=1, labels={"app": "g"}, rules=rules)
        placed = nodes_of(decide(zones(a="1", b="2"), job)[0])
        assert sorted(placed) == ["a", "a", "b", "b"]

    def test_a_zone_that_is_full_holds_the_others_back(self) -> None:
        facts = zones(a="1", b="2").running("x", gpus=8, on="b")
        rules = Rules(spread=(Spread(ZONE, 1, app("g")),))
        [decision] = decide(facts, gang("g", 4, minimum=1, gpus=1, labels={"app": "g"}, rules=rules))
        assert nodes_of(decision) == ["a"]
        assert decision.leftover is not None
        assert decision.leftover.nodes == {Reason.SPREAD: 1, Reason.GPU_COUNT: 1}

    def test_too_few_zones_count_as_empty_ones(self) -> None:
        rules = Rules(spread=(Spread(ZONE, 1, app("g"), min_domains=3),))
        job = gang("g", 3, minimum=1, gpus=1, labels={"app": "g"}, rules=rules)
        assert sorted(nodes_of(decide(zones(a="1", b="2"), job)[0])) == ["a", "b"]


class TestNodes:
    def test_node_affinity_that_matches_nothing_is_never_and_a_node_group_may_help(self) -> None:
        rules = Rules(node=(NodeTerm((Requirement("gen", "Gt", ("3",)),)),))
        facts = cluster().node("old", labels={"gen": "3"}).node("odd", labels={"gen": "x9"})
        verdict = refused(facts, pod("p", rules=rules))
        assert (verdict.kind, verdict.nodes, verdict.more_nodes_help) == (Kind.NEVER, {Reason.AFFINITY: 2}, True)
        assert nodes_of(decide(facts.node("new", labels={"gen": "4"}), pod("p", rules=rules))[0]) == ["new"]

    def test_a_daemon_that_tolerates_a_cordon_is_placed_on_a_cordoned_node(self) -> None:
        facts = cluster().node("n", cordoned=True)
        assert refused(facts, pod("p")).reason is Reason.CORDONED
        assert nodes_of(decide(facts, pod("p", tolerations=["node.kubernetes.io/unschedulable:NoSchedule"]))[0]) == [
            "n"
        ]

    def test_other_resources_are_counted_with_what_runs_and_with_what_this_pass_placed(self) -> None:
        facts = (
            cluster().node("n", extra={"example.com/fpga": 2}).running("r", extra=(("example.com/fpga", 1),), on="n")
        )
        jobs = [pod(name, extra={"example.com/fpga": 1}, created=float(n)) for n, name in enumerate("pq")]
        first, second = decide(facts, *jobs)
        assert nodes_of(first) == ["n"]
        assert (second.verdict.reason, second.verdict.more_nodes_help) == (Reason.EXTRA, True)
        assert "1 of example.com/fpga free" in second.verdict.message

    @pytest.mark.parametrize(("held", "helps"), [(1, False), (0, True)])
    def test_too_small_a_node_is_no_reason_for_more_of_them_but_a_missing_kind_is(self, held: int, helps: bool) -> None:
        facts = cluster().node("n", extra={"example.com/fpga": held} if held else {})
        verdict = refused(facts, pod("p", extra={"example.com/fpga": 2}))
        assert (verdict.kind, verdict.reason, verdict.more_nodes_help) == (Kind.NEVER, Reason.EXTRA_TOTAL, helps)

    def test_two_pods_do_not_share_a_port_of_a_node_unless_on_addresses_of_their_own(self) -> None:
        def asks(ip: str) -> Rules:
            return Rules(ports=(HostPort(80, "TCP", ip),))

        facts = cluster().node("n").running("r", on="n", ports=asks("10.0.0.1").ports)
        assert refused(facts, pod("p", rules=asks("0.0.0.0"))).reason is Reason.PORTS
        assert nodes_of(decide(facts, pod("p", rules=asks("10.0.0.2")))[0]) == ["n"]


class TestManyRules:
    def test_counts_that_were_given_up_for_others_are_right_when_they_are_asked_for_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(book, "TABLES", 2)
        engine = engine_of(zones(a="1", b="1"))
        asks = task("p", rules=apart("x"))

        def runs(uid: str, on: str) -> None:
            engine.pod_seen(RunningTask(uid, uid, "team", on, "", "", 0, Charge(), ours=False, labels={"app": "x"}))

        runs("one", "a")
        assert engine.takers(asks) == {"b"}
        for name in "stuv":
            engine.takers(task(name, rules=apart(name)))
        engine.pod_gone("one")
        runs("two", "b")
        assert engine.takers(asks) == {"a"}


class TestPreferences:
    def test_a_preferred_node_is_taken_first_and_another_one_when_it_is_full(self) -> None:
        fast = (Requirement("disk", "In", ("ssd",)),)
        rules = Rules(preferred=((5, NodeTerm(fast)), (1, NodeTerm((Requirement("old", "Exists"),)))))
        facts = (
            cluster().node("a", gpus=1, labels={"old": ""}).node("b", gpus=1).node("c", gpus=1, labels={"disk": "ssd"})
        )
        jobs = [pod(name, gpus=1, rules=rules, created=float(n)) for n, name in enumerate("pqr")]
        assert [nodes_of(decision) for decision in decide(facts, *jobs)] == [["c"], ["a"], ["b"]]

    def test_a_label_that_comes_later_is_preferred_from_then_on(self) -> None:
        rules = Rules(preferred=((1, NodeTerm((Requirement("disk", "Exists"),))),))
        facts = cluster().node("a").node("b")
        engine = engine_of(facts)
        assert nodes_of(engine.decide([pod("p", rules=rules)])[0]) == ["a"]
        engine.settle()
        engine.node_seen(cluster().node("b", labels={"disk": "ssd"}).nodes["b"])
        assert nodes_of(engine.decide([pod("q", rules=rules)])[0]) == ["b"]


class TestEviction:
    def test_the_pod_that_holds_the_port_is_the_one_that_yields(self) -> None:
        port = (HostPort(80),)
        facts = cluster().node("n")
        facts.running("quiet", on="n", priority=1).running("loud", on="n", priority=1, ports=port)
        [decision] = decide(facts, pod("p", priority=5, rules=Rules(ports=port)))
        assert [victim.name for victim in decision.victims] == ["loud"]

    def test_a_pod_that_keeps_others_away_yields_to_a_greater_one(self) -> None:
        facts = zones(a="1").running("quiet", on="a", priority=1)
        facts.running("alone", on="a", priority=1, anti_affinity=apart("p").anti_affinity)
        [decision] = decide(facts, pod("p", priority=5, labels={"app": "p"}))
        assert [victim.name for victim in decision.victims] == ["alone"]

    def test_nobody_yields_where_that_would_not_help(self) -> None:
        facts = zones(a="1").running("low", on="a", priority=1)
        decision = decide(facts, pod("p", priority=5, rules=near("nobody")))[0]
        assert not decision.victims
        assert decision.verdict.reason is Reason.POD_AFFINITY

    def test_after_a_trial_every_pod_is_where_it_was(self) -> None:
        facts = zones(a="1", b="1").running("x", count=1, on="a", priority=1, labels={"app": "x"})
        engine = engine_of(facts)
        engine.decide([pod("p", gpus=64, priority=5, rules=apart("x"))])
        engine.settle()
        assert engine.takers(task("q", rules=apart("x"))) == {"b"}


class TestClasses:
    def test_pods_that_differ_in_labels_nobody_selects_on_are_decided_as_one(self) -> None:
        engine = engine_of(zones(a="1"))
        one = task("p", labels={"app": "x", "index": "1"}, rules=apart("x"))
        two = task("q", labels={"app": "x", "index": "2"}, rules=apart("x"))
        other = task("r", labels={"app": "y", "index": "2"}, rules=apart("x"))
        assert engine.scope_of(one) == engine.scope_of(two) != engine.scope_of(other)
        assert engine.scope_of(task("s", labels={"app": "x"})) is None

    def test_labels_begin_to_matter_when_a_pod_selects_on_them_and_cease_when_it_leaves(self) -> None:
        facts = zones(a="1").running("db", on="a", anti_affinity=apart("web").anti_affinity)
        engine = engine_of(facts)
        web = task("web", labels={"app": "web"})
        assert engine.takers(web) == set()
        engine.pod_gone("uid-db")
        assert engine.takers(web) == {"a"}

    def test_a_namespace_selector_follows_the_labels_of_namespaces(self) -> None:
        chosen = (Requirement("team", "In", ("red",)),)
        term = PodTerm(HOST, app("web"), (), chosen)
        engine = engine_of(zones(a="1").running("db", on="a", anti_affinity=(term,)))
        web = task("web", labels={"app": "web"})
        assert engine.takers(web) == {"a"}
        engine.namespace_seen("team", {"team": "red"})
        assert engine.takers(web) == set()
        engine.namespace_gone("team")
        assert engine.takers(web) == {"a"}

    def test_a_node_that_registers_again_keeps_its_pods(self) -> None:
        facts = zones(a="1", b="2").running("x", on="a", labels={"app": "x"})
        engine = engine_of(facts)
        asks = task("p", rules=apart("x"))
        assert engine.takers(asks) == {"b"}
        engine.node_gone("a")
        engine.node_seen(facts.nodes["a"])
        assert engine.takers(asks) == {"b"}
