"""Hard constraints of tenant pods about other pods: what the arbiter keeps, which pods count, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.unit.sync.admission.gang_harness import ENDING, PLACED, Harness
from tests.unit.sync.admission.samples import GPU, POOL, TENANT, PodStores, make_member
from vkgateway.api.objects import Object
from vkgateway.kinds.pods.translation.node_terms import REQUIRED
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.peer_rules import NO_MINIMUM, VIRTUAL_NODE, PeerRules
from vkgateway.scheduler.core.snapshot import Pod
from vkgateway.scheduler.service.member import GangMember, read_member
from vkgateway.scheduler.service.peer_constraints import PeerConstraints, PeerSelectors, read_constraints

HOST = "kubernetes.io/hostname"
FRONT = {HOST: "a100.local", "vkgateway.io/pool": "a100", "zone": "z1"}
WEB: Object = {"matchLabels": {"app": "web"}}


def spread(key: str = HOST, selector: Object | None = WEB, **fields: Any) -> Object:
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [{name: value for name, value in (constraint | fields).items() if value}]}


def affinity(kind: str, *terms: Object) -> Object:
    return {"affinity": {kind: {REQUIRED: [{"topologyKey": HOST, "labelSelector": WEB, **term} for term in terms]}}}


def make_pod(uid: str = "u1", labels: Mapping[str, str] | None = None, **spec: Any) -> Object:
    container = {"name": "main", "image": "x", "resources": {"limits": {GPU: "1"}}}
    metadata = {
        "name": f"pod-{uid}",
        "namespace": "default",
        "uid": uid,
        "labels": {"app": "web"} if labels is None else labels,
    }
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def read(
    pod: Object, *, fronts: Sequence[Mapping[str, str]] = (FRONT,), carried: frozenset[str] = frozenset((HOST, "rack"))
) -> PeerConstraints:
    return read_constraints(pod, TENANT, fronts=fronts, carried=carried)


def selected(
    pod: Object,
    labels: Mapping[str, str],
    *,
    namespace: str = "default",
    namespaces: Mapping[str, Mapping[str, str]] | None = None,
    terminating: bool = False,
) -> bool:
    """Return whether the pod's only selector selects a pod with these labels."""
    selectors = PeerSelectors(lambda: namespaces or {})
    selectors.add(read(pod))
    return bool(selectors.names_for(namespace, labels, terminating=terminating))


def test_spread_over_host_names_is_kept() -> None:
    found = read(make_pod(**spread(maxSkew=2, nodeTaintsPolicy="Honor")))
    (rule,) = found.rules.spread
    assert (rule.topology_key, rule.max_skew, rule.min_domains, rule.honors_taints) == (HOST, 2, 1, True)
    assert (list(found.selectors), found.fault) == ([rule.peers], "")


@pytest.mark.parametrize(
    "spec",
    [
        spread(whenUnsatisfiable="ScheduleAnyway"),
        spread("vkgateway.io/pool"),
        affinity("podAffinity", {"topologyKey": "zone"}),
    ],
)
def test_soft_constraints_and_those_of_the_tenants_scheduler_are_left_out(spec: Object) -> None:
    assert read(make_pod(**spec)) == PeerConstraints(PeerRules(), {})


def test_more_domains_than_one_virtual_node_limit_each_host_and_the_virtual_node() -> None:
    rules = read(make_pod(**spread(minDomains=2))).rules.spread
    assert [(rule.topology_key, rule.min_domains) for rule in rules] == [(HOST, NO_MINIMUM), (VIRTUAL_NODE, NO_MINIMUM)]
    rules = read(make_pod(**spread(minDomains=2)), fronts=[FRONT, {**FRONT, HOST: "h100.local"}]).rules.spread
    assert [(rule.topology_key, rule.min_domains) for rule in rules] == [(HOST, NO_MINIMUM)]


def test_affinity_holds_on_hosts_and_anti_affinity_on_virtual_nodes() -> None:
    rules = read(make_pod(**affinity("podAffinity", {}))).rules
    assert rules.affinity_keys == (HOST,)
    rules = read(make_pod(**affinity("podAntiAffinity", {}, {"topologyKey": "zone"}))).rules
    assert [term.topology_key for term in rules.anti_affinity] == [VIRTUAL_NODE]
    bound = make_pod(nodeName="a100.local", **affinity("podAntiAffinity", {}))
    assert [term.topology_key for term in read(bound).rules.anti_affinity] == [HOST], "no scheduler has judged it"


def test_peer_must_match_all_terms_of_affinity() -> None:
    pod = make_pod(**affinity("podAffinity", {}, {"labelSelector": {"matchLabels": {"tier": "x"}}}))
    assert not selected(pod, {"app": "web"})
    assert selected(pod, {"app": "web", "tier": "x"})


def test_terms_over_labels_that_only_compute_nodes_have_are_refused() -> None:
    for kind, way_out in (
        ("podAffinity", "podset-required-topology"),
        ("podAntiAffinity", "topologySpreadConstraints"),
    ):
        fault = read(make_pod(**affinity(kind, {}, {"topologyKey": "rack"}))).fault
        assert fault.startswith(f"spec.affinity.{kind}.{REQUIRED}[1].topologyKey: rack is a label of compute nodes")
        assert way_out in fault
    assert read(make_pod(**affinity("podAntiAffinity", {"topologyKey": "unknown"}))).fault == "", (
        "it separates no nodes"
    )


def test_spread_that_counts_other_pools_is_refused() -> None:
    found = read(make_pod(**spread(nodeAffinityPolicy="Ignore")))
    assert found.fault.startswith("spec.topologySpreadConstraints[0].nodeAffinityPolicy: Ignore counts nodes outside")
    assert found.rules.spread == ()


def test_selectors_select_as_in_kubernetes() -> None:
    assert selected(make_pod(**spread()), {"app": "web", "more": "1"})
    assert not selected(make_pod(**spread()), {"app": "db"})
    assert not selected(make_pod(**spread()), {"app": "web"}, namespace="other")
    assert not selected(make_pod(**spread(selector=None)), {"app": "web"}), "no selector selects no pod"
    assert selected(make_pod(**affinity("podAffinity", {"labelSelector": {}})), {"app": "db"}), "an empty one all"
    negative = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]}
    assert selected(make_pod(**spread(selector=negative)), {})
    assert not selected(make_pod(**spread(selector=negative)), {"app": "db"})


def test_label_keys_add_the_values_of_the_pod() -> None:
    pod = make_pod(labels={"app": "web", "hash": "1"}, **spread(matchLabelKeys=["hash", "absent"]))
    assert selected(pod, {"app": "web", "hash": "1"})
    assert not selected(pod, {"app": "web", "hash": "2"})
    pod = make_pod(labels={"app": "web", "hash": "1"}, **affinity("podAntiAffinity", {"mismatchLabelKeys": ["hash"]}))
    assert not selected(pod, {"app": "web", "hash": "1"})
    assert selected(pod, {"app": "web", "hash": "2"})


def test_namespaces_of_affinity() -> None:
    named = make_pod(**affinity("podAffinity", {"namespaces": ["x"]}))
    assert selected(named, {"app": "web"}, namespace="x")
    assert not selected(named, {"app": "web"})
    by_label = make_pod(
        **affinity("podAffinity", {"namespaces": ["x"], "namespaceSelector": {"matchLabels": {"team": "t"}}})
    )
    known = {"default": {}, "y": {"team": "t"}}
    assert [name for name in "xyz" if selected(by_label, {"app": "web"}, namespace=name, namespaces=known)] == [
        "x",
        "y",
    ]
    everywhere = make_pod(**affinity("podAffinity", {"namespaceSelector": {}}))
    assert selected(everywhere, {"app": "web"}, namespace="z")


def test_terminating_pods_count_for_affinity_only() -> None:
    assert not selected(make_pod(**spread()), {"app": "web"}, terminating=True)
    assert selected(make_pod(**affinity("podAffinity", {})), {"app": "web"}, terminating=True)


def test_equal_constraints_of_two_tenants_have_different_names() -> None:
    one, other = (read_constraints(make_pod(**spread()), name, fronts=[FRONT], carried=frozenset()) for name in "ab")
    assert one.selectors.keys().isdisjoint(other.selectors)


# In a tenant's gangs.


def member(uid: str = "u1", labels: Mapping[str, str] | None = None, **spec: Any) -> GangMember:
    found = read_member(
        make_pod(uid, labels, **spec), tenant=TENANT, mark="m", bindings=PodStores().bindings(POOL), look=lambda _: None
    )
    assert found is not None
    return found


def pods_of(harness: Harness) -> dict[str, Pod]:
    gangs, _ = harness.gangs.build_gangs()
    return {pod.uid: pod for gang in gangs for pod in gang.pods}


def test_pods_without_constraints_have_no_rules() -> None:
    harness = Harness(member("u1"), member("u2"))
    assert [pod.shape.peers for pod in pods_of(harness).values()] == [None, None]


def test_selected_pods_get_rules_when_a_constraint_appears() -> None:
    harness = Harness(member("u1"), member("u2", {"app": "db"}))
    pods_of(harness)
    assert harness.gangs.put_member(member("u3", **spread()))
    assert not harness.gangs.put_member(member("u4", **spread())), "its selector is known"
    pods = pods_of(harness)
    (rule,) = pods["u3"].shape.peers.spread  # type: ignore[union-attr]
    assert pods["u1"].shape.peers == PeerRules(selected_by=frozenset((rule.peers,)))
    assert pods["u2"].shape.peers is None
    assert pods["u3"].shape == pods["u4"].shape


def test_selectors_are_dropped_with_the_last_pod_that_has_them() -> None:
    harness = Harness(member("u1", **spread()), member("u2", **spread()), member("u3"))
    harness.gangs.drop_member("u1")
    harness.gangs.put_member(member("u2", **spread()))
    assert harness.gangs.peer_selectors
    harness.gangs.drop_member("u2")
    assert not harness.gangs.peer_selectors


def test_terminating_member_does_not_count_for_spread() -> None:
    harness = Harness(member("u1", **spread()), member("u2"), member("u3"))
    harness.seen |= {"u2": PLACED, "u3": ENDING}
    pods = pods_of(harness)
    assert pods["u2"].shape.peers is not None
    assert pods["u3"].shape.peers is None


def test_waiting_pod_with_a_refused_constraint_is_infeasible() -> None:
    ignoring = member("u1", **spread(nodeAffinityPolicy="Ignore"))
    harness = Harness(ignoring)
    report = harness.pending_gangs()
    assert report.code is PendingReason.INFEASIBLE
    assert report.message.startswith(
        "pod default/pod-u1 can run on no virtual node: spec.topologySpreadConstraints[0].nodeAffinityPolicy: Ignore"
    )
    harness = Harness(ignoring)
    harness.seen["u1"] = PLACED
    assert pods_of(harness).keys() == {"u1"}, "a running pod stays"


def test_another_scheduler_keeps_the_constraints_of_its_pool() -> None:
    harness = Harness()
    harness.foreign.add(POOL)
    harness.gangs.put_member(member("u1", **spread(nodeAffinityPolicy="Ignore")))
    harness.gangs.put_member(make_member("u2"))
    assert [pod.shape.peers for pod in pods_of(harness).values()] == [None, None]


def test_pod_can_reach_no_virtual_node_without_its_topology_key() -> None:
    found = member("u1", **spread("rack"))
    assert found.pools == ()
    assert found.unreachable_reason == (
        "spec.topologySpreadConstraints[0].topologyKey: rack is no label of virtual node a100.local; use a label that"
        " virtual nodes show, such as kubernetes.io/hostname, or ask the platform for virtual nodes by this label"
    )
    found = member("u1", **affinity("podAffinity", {"topologyKey": "rack"}))
    assert f"spec.affinity.podAffinity.{REQUIRED}[0].topologyKey: rack is no label" in found.unreachable_reason
    assert member("u1", **affinity("podAntiAffinity", {"topologyKey": "rack"})).pools == (POOL,)
