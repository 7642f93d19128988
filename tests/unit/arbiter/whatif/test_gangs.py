"""What would become of a gang that is submitted now."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.arbiter.placed import runs
from tests.unit.arbiter.sim import GPU, LOW, OTHER, Cluster, gang, node, quota
from tests.unit.arbiter.whatif.asked import asked
from vkgateway.arbiter.snapshot import Band
from vkgateway.arbiter.whatif.answers import Answer, EffectKind, Verdict
from vkgateway.arbiter.whatif.questions import MOST_PODS, GangQuestion
from vkgateway.model.errors import InputError, NotFoundError, VkgatewayError


def submitted(there: Cluster, tenant: str, gpus: int, *, pods: int = 1, after: float = 0.0, **said: Any) -> Answer:
    question = GangQuestion(tenant=tenant, pods=pods, requests={GPU: gpus}, **said)
    return asked(there, question, after=after)


def lent(*gangs: Any) -> Cluster:
    """Two nodes of 8: one is guaranteed to a, and b runs on both, borrowed."""
    there = Cluster([node("n0"), node("n1")], [quota("a", 8), quota("b")])
    there.add(*(gangs or (gang("b/ns/gang/low", "b", [8], band=LOW), gang("b/ns/pod/u", "b", [8], band=LOW))))
    there.settle(2)
    return there


def test_into_free_room_it_starts_at_once_inside_the_guarantee() -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a", 8), quota("b")])
    answer = submitted(there, "a", 4, pods=2)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.verdict, outcome.borrowed) == (Verdict.STARTS, Verdict.STARTS, False)
    assert [(each.pool, each.node, each.pods) for each in outcome.placements] == [("pool.compute", "n0", 2)]
    assert (outcome.code, outcome.expected, answer.evictions, answer.effects) == ("", "", (), ())
    assert answer.summary == "It starts now, inside the tenant's guarantee."
    [pool] = answer.pools
    assert pool.before is not None
    assert pool.after is not None
    assert (pool.before.free, pool.after.free, pool.after.used) == (16, 8, 8)


def test_beyond_the_guarantee_it_borrows() -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a", 8), quota("b")])
    answer = submitted(there, "b", 8)
    assert answer.gangs[0].borrowed
    assert answer.summary == "It starts now, outside the tenant's guarantee."


def test_who_is_evicted_for_it_is_named_with_notice_and_loss() -> None:
    answer = submitted(lent(), "a", 8)
    [outcome], [evicted] = answer.gangs, answer.evictions
    assert answer.verdict is Verdict.STARTS_AFTER_EVICTION
    assert (outcome.code, outcome.place, outcome.expected) == ("WaitingForEviction", 1, "within a minute")
    assert outcome.placements[0].node in evicted.nodes
    assert (evicted.gang.tenant, evicted.pods, evicted.of, evicted.whole, evicted.inside) == ("b", 1, 1, True, False)
    assert (evicted.notice, evicted.grace, evicted.makes_room_for) == (10.0, 5.0, outcome.gang.id)
    assert outcome.likely == evicted.deadline + evicted.grace
    assert evicted.lost > 0
    assert answer.summary == "It starts, inside the tenant's guarantee, once the arbiter has evicted 1 pod."


def test_what_leaves_anyway_is_not_evicted_for_it() -> None:
    there = lent()
    there.add(gang("a/ns/gang/first", "a", [8]))
    anyway = asked(there, GangQuestion(tenant="b", pods=1, requests={GPU: 8}, band="low"))
    assert (anyway.evictions, anyway.verdict) == ((), Verdict.WAITS)


def test_it_waits_for_room_that_comes_free_at_a_known_time() -> None:
    there = lent(gang("b/ns/gang/long", "b", [8, 8], run_limit=3600.0))
    answer = submitted(there, "b", 8, after=100.0)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.code, outcome.place) == (Verdict.WAITS, "WaitingForRoom", 1)
    assert outcome.earliest == there.gangs["b/ns/gang/long"].pods[0].since + 3600
    assert "between" in outcome.expected or "at about" in outcome.expected
    assert answer.summary == "It waits."


def test_it_stands_behind_those_that_wait_already() -> None:
    there = lent()
    there.add(gang("b/ns/gang/waits", "b", [8], band=LOW, priority=-1, preempts=False))
    assert submitted(there, "b", 8, band="low", priority=-2).gangs[0].place == 2


def test_its_limit_keeps_it_waiting_and_what_is_beyond_the_whole_limit_never_starts() -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a", limit=8)])
    there.add(gang("a/ns/gang/x", "a", [8]))
    assert submitted(there, "a", 8).gangs[0].code == "WaitingForQuota"
    never = submitted(there, "a", 8, pods=2)
    assert (never.verdict, never.gangs[0].code) == (Verdict.NEVER, "WaitingForQuota")


def test_a_shape_that_fits_nowhere_never_starts() -> None:
    answer = submitted(lent(), "a", 9)
    assert (answer.verdict, answer.gangs[0].code) == (Verdict.NEVER, "Infeasible")
    assert "a pod can have nvidia.com/gpu 8 at most" in answer.gangs[0].message


def test_an_elastic_gang_starts_with_its_minimum() -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a")])
    there.add(gang("a/ns/pod/u", "a", [4]))
    answer = submitted(there, "a", 4, pods=5, minimum=2)
    [outcome] = answer.gangs
    assert (answer.verdict, outcome.starting, outcome.pods, outcome.code) == (Verdict.STARTS, 3, 5, "WaitingForRoom")
    assert answer.summary == "It starts now with 3 of 5 pods, outside the tenant's guarantee."


def test_what_it_takes_from_others_is_told() -> None:
    """A gang of a higher priority preempts the one that runs, and takes the place of the one that is next."""
    there = Cluster([node("n0")], [quota("a", 8), quota("b")])
    there.add(gang("b/ns/gang/long", "b", [8], run_limit=3600.0))
    there.settle(1)
    there.add(gang("b/ns/gang/next", "b", [8], run_limit=7200.0))
    there.settle(1)
    answer = submitted(there, "b", 8, priority=1000, run_limit=86_400.0)
    [effect] = answer.effects
    assert (effect.gang.name, effect.what, effect.pods) == ("next", EffectKind.LATER, 1)
    assert effect.before.startswith("WaitingFor")


def test_only_the_pools_that_are_named_count() -> None:
    quotas = [quota("a"), quota("a", pool=OTHER), quota("b")]
    there = Cluster([node("n0")], quotas, more=[node("m0")])
    assert submitted(there, "a", 8, pools=("other",)).gangs[0].placements[0].node == "m0"
    assert submitted(there, "a", 8, pools=("other.compute", "pool")).gangs[0].placements[0].node == "m0"
    assert submitted(there, "a", 8).gangs[0].placements[0].node == "n0"
    with pytest.raises(InputError, match=r"tenant 'b' has no quota in pool 'other\.compute'") as caught:
        submitted(there, "b", 8, pools=("other",))
    assert caught.value.hint == "Its pools are: pool.compute."


def test_all_its_pods_within_one_rack() -> None:
    there = Cluster([node("n0"), node("n1", rack="r1")], [quota("a")])
    assert submitted(there, "a", 8, pods=2).verdict is Verdict.STARTS
    assert submitted(there, "a", 8, pods=2, within="rack").verdict is Verdict.NEVER


def test_what_was_decided_in_the_last_cycle_is_carried_out_first() -> None:
    there = Cluster([node("n0")], [quota("a"), quota("b")])
    there.add(gang("b/ns/gang/starts", "b", [8]))
    answer = submitted(there, "a", 8)
    assert (answer.verdict, answer.effects) == (Verdict.WAITS, ())


def test_time_that_has_passed_since_counts() -> None:
    """Pods with notice are gone after notice and grace; they are not there for ever."""
    there = lent()
    there.add(gang("a/ns/gang/first", "a", [8]))
    there.cycle()
    waits = submitted(there, "b", 8, run_limit=60.0, after=12.0)
    assert waits.time - waits.seen == 12.0


def test_a_gang_inside_its_guarantee_that_is_preempted_by_its_own_tenant_is_said_to_be_inside() -> None:
    there = Cluster([node("n0")], [quota("a", 8)])
    there.add(runs(gang("a/ns/gang/low", "a", [8], created=900.0), ["n0"], borrowed=False))
    answer = submitted(there, "a", 8, priority=10)
    assert [(each.gang.name, each.inside) for each in answer.evictions] == [("low", True)]


@pytest.mark.parametrize(
    ("said", "kind", "message", "hint"),
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
def test_what_cannot_be_asked_is_refused_with_a_way_out(
    said: dict[str, Any], kind: type[VkgatewayError], message: str, hint: str
) -> None:
    there = Cluster([node("n0")], [quota("alpha", 8)])
    lone = {"pods": 1} if said.get("requests") == {"cpu": 1} else {}
    given: dict[str, Any] = {"tenant": "alpha", "pods": 2, "requests": {GPU: 1}, **lone, **said}
    with pytest.raises(kind) as caught:
        asked(there, GangQuestion(**given))
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize("seed", range(25))
def test_what_is_foretold_comes_true(seed: int) -> None:
    """In a random cluster a gang that is then submitted starts where it was said to, and those go that were named."""
    random = Random(seed)
    there = Cluster(
        [node(f"n{number}") for number in range(random.randint(5, 14))], [quota("a", 16), quota("b", 8), quota("c")]
    )
    for number in range(14):
        shapes = [random.choice((1, 2, 4, 8))] * random.randint(1, 3)
        band = random.choice((Band.GUARANTEED, LOW))
        there.add(gang(f"t/ns/gang/g{number:02}", random.choice("abc"), shapes, band=band))
        there.settle(random.randint(0, 2))
    pods, gpus = random.randint(1, 3), random.choice((2, 4, 8))
    answer = submitted(there, "a", gpus, pods=pods)
    there.cycle()  # what happens anyway
    there.add(gang("a/ns/gang/new", "a", [gpus] * pods))
    decisions = there.cycle()
    admitted = sorted(
        each for admit in decisions.admits if admit.gang == "a/ns/gang/new" for each in admit.nodes.values()
    )
    plan = decisions.plans.get("a/ns/gang/new")
    nodes = admitted or sorted(plan.nodes.values() if plan is not None else ())
    said = sorted(each.node for each in answer.gangs[0].placements for _ in range(each.pods))
    assert (said, answer.verdict is Verdict.STARTS) == (nodes, bool(admitted))
    evicted = {(evict.gang, len(evict.pods)) for evict in decisions.evicts}
    assert {(each.gang.id, each.pods) for each in answer.evictions} == evicted
