"""Answers about a new gang."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import GPU, LOW, OTHER, Cluster, make_gang, make_node, make_quota
from tests.unit.arbiter.whatif.question_asking import ask_question
from vkgateway.api.errors import InputError, NotFoundError, VkgatewayError
from vkgateway.scheduler.core.snapshot import Band
from vkgateway.scheduler.core.whatif.answers import Answer, EffectKind, Verdict
from vkgateway.scheduler.core.whatif.questions import MOST_PODS, GangQuestion


def submit_gang(
    cluster: Cluster, tenant: str, gpus: int, *, pods: int = 1, after: float = 0.0, **fields: Any
) -> Answer:
    question = GangQuestion(tenant=tenant, pods=pods, requests={GPU: gpus}, **fields)
    return ask_question(cluster, question, after=after)


def borrowed_cluster(*gangs: Any) -> Cluster:
    """Return two nodes of 8: one is guaranteed to a, and b borrows both."""
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")])
    cluster.add(
        *(gangs or (make_gang("b/ns/gang/low", "b", [8], band=LOW), make_gang("b/ns/pod/u", "b", [8], band=LOW)))
    )
    cluster.run_for(2)
    return cluster


def test_gang_starts_inside_guarantee_on_free_capacity() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")])
    answer = submit_gang(cluster, "a", 4, pods=2)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.verdict, outcome.borrowed) == (Verdict.STARTS, Verdict.STARTS, False)
    assert [(each.pool, each.node, each.pods) for each in outcome.placements] == [("pool.compute", "n0", 2)]
    assert (outcome.code, outcome.expected, answer.evictions, answer.effects) == ("", "", (), ())
    assert answer.summary == "It starts now, inside the tenant's guarantee."
    [pool] = answer.pools
    assert pool.before is not None
    assert pool.after is not None
    assert (pool.before.free, pool.after.free, pool.after.used) == (16, 8, 8)


def test_gang_beyond_guarantee_borrows() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8), make_quota("b")])
    answer = submit_gang(cluster, "b", 8)
    assert answer.gangs[0].borrowed
    assert answer.summary == "It starts now, outside the tenant's guarantee."


def test_evictions_are_listed_with_notice_and_loss() -> None:
    answer = submit_gang(borrowed_cluster(), "a", 8)
    [outcome], [evicted] = answer.gangs, answer.evictions
    assert answer.verdict is Verdict.STARTS_AFTER_EVICTION
    assert (outcome.code, outcome.place, outcome.expected) == ("WaitingForEviction", 1, "within a minute")
    assert outcome.placements[0].node in evicted.nodes
    assert (evicted.gang.tenant, evicted.pods, evicted.of, evicted.whole, evicted.inside) == ("b", 1, 1, True, False)
    assert (evicted.notice, evicted.grace, evicted.makes_room_for) == (10.0, 5.0, outcome.gang.id)
    assert outcome.likely == evicted.deadline + evicted.grace
    assert evicted.lost > 0
    assert answer.summary == "It starts, inside the tenant's guarantee, once the arbiter has evicted 1 pod."


def test_terminating_pods_are_not_evictions() -> None:
    cluster = borrowed_cluster()
    cluster.add(make_gang("a/ns/gang/first", "a", [8]))
    anyway = ask_question(cluster, GangQuestion(tenant="b", pods=1, requests={GPU: 8}, band="low"))
    assert (anyway.evictions, anyway.verdict) == ((), Verdict.WAITS)


def test_gang_waits_for_known_end() -> None:
    cluster = borrowed_cluster(make_gang("b/ns/gang/long", "b", [8, 8], run_limit=3600.0))
    answer = submit_gang(cluster, "b", 8, after=100.0)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.code, outcome.place) == (Verdict.WAITS, "WaitingForRoom", 1)
    assert outcome.earliest == cluster.gangs["b/ns/gang/long"].pods[0].since + 3600
    assert "between" in outcome.expected or "at about" in outcome.expected
    assert answer.summary == "It waits."


def test_gang_queues_behind_waiting_gangs() -> None:
    cluster = borrowed_cluster()
    cluster.add(make_gang("b/ns/gang/waits", "b", [8], band=LOW, priority=-1, preempts=False))
    assert submit_gang(cluster, "b", 8, band="low", priority=-2).gangs[0].place == 2


def test_gang_beyond_limit_waits_and_beyond_whole_limit_never_starts() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", limit=8)])
    cluster.add(make_gang("a/ns/gang/x", "a", [8]))
    assert submit_gang(cluster, "a", 8).gangs[0].code == "WaitingForQuota"
    never = submit_gang(cluster, "a", 8, pods=2)
    assert (never.verdict, never.gangs[0].code) == (Verdict.NEVER, "WaitingForQuota")


def test_infeasible_shape_never_starts() -> None:
    answer = submit_gang(borrowed_cluster(), "a", 9)
    assert (answer.verdict, answer.gangs[0].code) == (Verdict.NEVER, "Infeasible")
    assert "a pod can have nvidia.com/gpu 8 at most" in answer.gangs[0].message


def test_elastic_gang_starts_with_minimum() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1")], [make_quota("a")])
    cluster.add(make_gang("a/ns/pod/u", "a", [4]))
    answer = submit_gang(cluster, "a", 4, pods=5, minimum=2)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.starting, outcome.pods, outcome.code) == (Verdict.STARTS, 3, 5, "WaitingForRoom")
    assert answer.summary == "It starts now with 3 of 5 pods, outside the tenant's guarantee."


def test_effects_on_other_gangs_are_listed() -> None:
    """A gang of higher priority preempts the running one and starts before the next one."""
    cluster = Cluster([make_node("n0")], [make_quota("a", 8), make_quota("b")])
    cluster.add(make_gang("b/ns/gang/long", "b", [8], run_limit=3600.0))
    cluster.run_for(1)
    cluster.add(make_gang("b/ns/gang/next", "b", [8], run_limit=7200.0))
    cluster.run_for(1)
    answer = submit_gang(cluster, "b", 8, priority=1000, run_limit=86_400.0)
    [effect] = answer.effects
    assert (effect.gang.name, effect.what, effect.pods) == ("next", EffectKind.LATER, 1)
    assert effect.before.startswith("WaitingFor")


def test_only_named_pools_are_used() -> None:
    quotas = [make_quota("a"), make_quota("a", pool=OTHER), make_quota("b")]
    cluster = Cluster([make_node("n0")], quotas, more=[make_node("m0")])
    assert submit_gang(cluster, "a", 8, pools=("other",)).gangs[0].placements[0].node == "m0"
    assert submit_gang(cluster, "a", 8, pools=("other.compute", "pool")).gangs[0].placements[0].node == "m0"
    assert submit_gang(cluster, "a", 8).gangs[0].placements[0].node == "n0"
    with pytest.raises(InputError, match=r"tenant 'b' has no quota in pool 'other\.compute'") as caught:
        submit_gang(cluster, "b", 8, pools=("other",))
    assert caught.value.hint == "Its pools are: pool.compute."


def test_required_level_is_respected() -> None:
    cluster = Cluster([make_node("n0"), make_node("n1", rack="r1")], [make_quota("a")])
    assert submit_gang(cluster, "a", 8, pods=2).verdict is Verdict.STARTS
    assert submit_gang(cluster, "a", 8, pods=2, within="rack").verdict is Verdict.NEVER


def test_last_cycle_is_carried_out_first() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a"), make_quota("b")])
    cluster.add(make_gang("b/ns/gang/starts", "b", [8]))
    answer = submit_gang(cluster, "a", 8)
    assert (answer.verdict, answer.effects) == (Verdict.WAITS, ())


def test_elapsed_time_counts() -> None:
    """Notified pods terminate after notice and grace."""
    cluster = borrowed_cluster()
    cluster.add(make_gang("a/ns/gang/first", "a", [8]))
    cluster.cycle()
    waits = submit_gang(cluster, "b", 8, run_limit=60.0, after=12.0)
    assert waits.time - waits.seen == 12.0


def test_eviction_by_own_tenant_is_marked_inside() -> None:
    cluster = Cluster([make_node("n0")], [make_quota("a", 8)])
    cluster.add(place_gang(make_gang("a/ns/gang/low", "a", [8], created=900.0), ["n0"], borrowed=False))
    answer = submit_gang(cluster, "a", 8, priority=10)
    assert [(each.gang.name, each.inside) for each in answer.evictions] == [("low", True)]


@pytest.mark.parametrize(
    ("fields", "kind", "message", "hint"),
    [
        ({"tenant": "alhpa"}, NotFoundError, "tenant 'alhpa' does not exist", "Did you mean alpha? Available tenants"),
        ({"pools": ("gpu",)}, NotFoundError, "pool 'gpu' does not exist", "Available pools: pool.compute."),
        ({"requests": {"nvidia.com/gpux": 1}}, InputError, "'nvidia.com/gpux' is offered by no node", "nvidia.com/gpu"),
        ({"requests": {GPU: "0.5"}}, InputError, "0.5 is not a whole number", "not divided"),
        ({"requests": {GPU: "-1"}}, InputError, "-1 is not more than 0", "Omit it"),
        ({"requests": {GPU: "many"}}, InputError, "request of nvidia.com/gpu: ", "as in Kubernetes"),
        ({"requests": {}}, InputError, "request nothing", "nvidia.com/gpu 8"),
        ({"requests": {"cpu": 1}}, InputError, "a single pod without devices", "several pods"),
        ({"pods": 0}, InputError, "pods: 0 is not between 1 and 10000", "another size"),
        ({"pods": MOST_PODS + 1}, InputError, "pods: 10001 is not between 1 and 10000", "another size"),
        ({"minimum": 3}, InputError, "minimum: 3 is not between 1 and 2", "all pods"),
        ({"band": "high"}, InputError, "band: 'high' does not exist", "guaranteed, low"),
        ({"within": "zone"}, InputError, "label 'zone'", "rack"),
        ({"run_limit": 0.0}, InputError, "run limit: 0 s is not more than 0", "a longer one"),
    ],
)
def test_invalid_question_is_rejected_with_hint(
    fields: dict[str, Any], kind: type[VkgatewayError], message: str, hint: str
) -> None:
    cluster = Cluster([make_node("n0")], [make_quota("alpha", 8)])
    lone = {"pods": 1} if fields.get("requests") == {"cpu": 1} else {}
    given: dict[str, Any] = {"tenant": "alpha", "pods": 2, "requests": {GPU: 1}, **lone, **fields}
    with pytest.raises(kind) as caught:
        ask_question(cluster, GangQuestion(**given))
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize("seed", range(25))
def test_prediction_matches_next_cycle(seed: int) -> None:
    """In a random cluster, the submitted gang starts on the predicted nodes with the predicted evictions."""
    random = Random(seed)
    cluster = Cluster(
        [make_node(f"n{number}") for number in range(random.randint(5, 14))],
        [make_quota("a", 16), make_quota("b", 8), make_quota("c")],
    )
    for number in range(14):
        shapes = [random.choice((1, 2, 4, 8))] * random.randint(1, 3)
        band = random.choice((Band.GUARANTEED, LOW))
        cluster.add(make_gang(f"t/ns/gang/g{number:02}", random.choice("abc"), shapes, band=band))
        cluster.run_for(random.randint(0, 2))
    pods, gpus = random.randint(1, 3), random.choice((2, 4, 8))
    answer = submit_gang(cluster, "a", gpus, pods=pods)
    cluster.cycle()  # decisions without the new gang
    cluster.add(make_gang("a/ns/gang/new", "a", [gpus] * pods))
    decisions = cluster.cycle()
    admitted = sorted(
        each for admit in decisions.admits if admit.gang == "a/ns/gang/new" for each in admit.nodes.values()
    )
    plan = decisions.plans.get("a/ns/gang/new")
    nodes = admitted or sorted(plan.nodes.values() if plan is not None else ())
    answered_nodes = sorted(each.node for each in answer.gangs[0].placements for _ in range(each.pods))
    assert (answered_nodes, answer.verdict is Verdict.STARTS) == (nodes, bool(admitted))
    evicted = {(evict.gang, len(evict.pods)) for evict in decisions.evicts}
    assert {(each.gang.id, each.pods) for each in answer.evictions} == evicted
