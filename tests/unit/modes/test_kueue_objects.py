"""Objects for Kueue: Workloads of gangs, and the queues of a pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, KEY, gpu_shape, make_gang, make_nodes, make_quota
from vkgateway.api.objects import Object
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.scheduler.backends.kueue.mode import KueueMode, workload_priority
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.pod_sets import pod_set_name
from vkgateway.scheduler.core.snapshot import Band, Gang, Pool, Requirement, Toleration

MODE = KueueMode()
KUEUE = PoolScheduling(mode="kueue")
SPEC = PoolSpec(name=KEY[1], scheduling=KUEUE, node_selector={"gpu": "a100"})
POOL = Pool(key=KEY, nodes=tuple(make_nodes(4)), governed=(GPU,))


def request(gang: Gang, spec: PoolSpec = SPEC) -> Request:
    name, levels = attempt_name(gang.tenant, gang.id), MODE.levels(POOL, spec)
    return Request(name=name, gang=gang, pods=gang.pods, spec=spec, levels=levels)


def workload(gang: Gang, spec: PoolSpec = SPEC) -> Object:
    return MODE.attempt_object(request(gang, spec))


def test_workload_asks_for_all_pods_by_shape() -> None:
    gang = make_gang("g", "a", [gpu_shape(8, 4), gpu_shape(8, 4), gpu_shape(1)])
    document = workload(gang)
    assert document["metadata"]["namespace"] == "vkgateway-system"
    assert document["spec"]["queueName"] == "a.pool"
    counts = {each["name"]: each["count"] for each in document["spec"]["podSets"]}
    assert counts == {pod_set_name(gang.pods[0]): 2, pod_set_name(gang.pods[2]): 1}
    requests = [
        each["template"]["spec"]["containers"][0]["resources"]["requests"] for each in document["spec"]["podSets"]
    ]
    assert sorted(requests, key=str) == [{"cpu": "4", GPU: "8"}, {GPU: "1"}]
    assert all(each["topologyRequest"] == {"unconstrained": True} for each in document["spec"]["podSets"])


def test_workload_contains_nothing_of_the_tenants_pods_but_requests_and_node_constraints() -> None:
    shape = replace(
        gpu_shape(1),
        terms=((Requirement(key="zone", operator="In", values=("a", "b")),),),
        tolerations=(Toleration(key="spot", operator="Exists"),),
        images=frozenset({"secret.example.com/image:1"}),
    )
    (pod_set,) = workload(make_gang("g", "a", [shape]))["spec"]["podSets"]
    spec = pod_set["template"]["spec"]
    assert "secret.example.com" not in str(pod_set)
    assert spec["tolerations"][0] == {"key": "spot", "operator": "Exists"}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}


def test_gang_keeps_its_slots_on_a_cordoned_node() -> None:
    (pod_set,) = workload(make_gang("g", "a", [1]))["spec"]["podSets"]
    (toleration,) = pod_set["template"]["spec"]["tolerations"]
    assert toleration == {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


def test_level_becomes_a_topology_request() -> None:
    spec = replace_spec(levels=("rack",))
    assert _topology(make_gang("g", "a", [1], required_level="rack"), spec) == {"required": "rack"}
    assert _topology(make_gang("g", "a", [1], preferred_level="rack"), spec) == {"preferred": "rack"}
    assert _topology(make_gang("g", "a", [1], required_level="row"), spec) == {"unconstrained": True}


def _topology(gang: Gang, spec: PoolSpec) -> Any:
    return workload(gang, spec)["spec"]["podSets"][0]["topologyRequest"]


def replace_spec(**fields: Any) -> PoolSpec:
    from msgspec.structs import replace as changed

    return changed(SPEC, **fields)


def test_queues_of_administrators_get_no_topology_request() -> None:
    spec = replace_spec(scheduling=PoolScheduling(mode="kueue", queue="{tenant}-gpus", manage_queues=False))
    document = workload(make_gang("g", "a", [1]), spec)
    assert document["spec"]["queueName"] == "a-gpus"
    assert "topologyRequest" not in document["spec"]["podSets"][0]
    assert MODE.pool_objects(POOL, spec, [make_quota("a", 8)], []) == []


def test_resources_that_are_passed_through_are_not_asked_for() -> None:
    spec = replace_spec(passed_through=("nvidia.com/gpumem",))
    shape = replace(gpu_shape(1), requests=((GPU, 1000), ("nvidia.com/gpumem", 4_000_000), ("pods", 1000)))
    (pod_set,) = workload(make_gang("g", "a", [shape]), spec)["spec"]["podSets"]
    assert pod_set["template"]["spec"]["containers"][0]["resources"]["requests"] == {GPU: "1"}


def test_digest_follows_the_spec_only() -> None:
    gang = make_gang("g", "a", [1, 1])
    other = replace(gang, pods=tuple(replace(pod, uid=f"{pod.uid}x") for pod in gang.pods))
    assert MODE.digest(request(gang)) == MODE.digest(request(other))
    assert MODE.digest(request(gang)) != MODE.digest(request(replace(gang, pods=gang.pods[:1])))
    assert workload(gang)["metadata"]["annotations"]["vkgateway.io/digest"] == MODE.digest(request(gang))


@pytest.mark.parametrize("priority", [-2_000_000_000, -5, 0, 7, 2_000_000_000])
def test_band_comes_before_priority(priority: int) -> None:
    low = make_gang("l", "a", [1], band=Band.LOW, priority=2_000_000_000)
    guaranteed = make_gang("g", "a", [1], priority=priority)
    assert workload_priority(low) < workload_priority(guaranteed, is_surplus=True)
    assert workload_priority(guaranteed, is_surplus=True) < workload_priority(
        make_gang("h", "a", [1]), is_surplus=False
    )
    assert all(abs(workload_priority(low, is_surplus=surplus)) < 2**31 for surplus in (True, False))


def objects(*quotas: Any, spec: PoolSpec = SPEC, pool: Pool = POOL) -> dict[str, Object]:
    """Return a pool's objects; flavor and topology without the digest in their names."""
    found = MODE.pool_objects(pool, spec, quotas, [])
    return {f"{each['kind']}/{'.'.join(each['metadata']['name'].split('.')[:2])}": each for each in found}


def test_guarantee_and_limit_become_quotas() -> None:
    found = objects(make_quota("a", 16, limit=24), make_quota("b"))
    assert sorted(found) == [
        "ClusterQueue/a.pool",
        "ClusterQueue/b.pool",
        "Cohort/vkgateway.pool",
        "LocalQueue/a.pool",
        "LocalQueue/b.pool",
        "ResourceFlavor/vkgateway.pool",
        "Topology/vkgateway.pool",
    ]
    assert amounts(found["ClusterQueue/a.pool"])[GPU] == {"nominalQuota": "16", "borrowingLimit": "8"}
    assert amounts(found["ClusterQueue/b.pool"])[GPU] == {"nominalQuota": "0"}
    assert amounts(found["Cohort/vkgateway.pool"])[GPU] == {"nominalQuota": "16"}
    assert amounts(found["Cohort/vkgateway.pool"])["cpu"] == {"nominalQuota": "128"}
    assert found["LocalQueue/a.pool"]["spec"] == {"clusterQueue": "a.pool"}
    assert found["ClusterQueue/a.pool"]["spec"]["cohortName"] == "vkgateway.pool"


@pytest.mark.parametrize("limit", [None, 24])
def test_queue_borrows_nothing_while_a_budget_is_used_up(limit: int | None) -> None:
    found = objects(replace(make_quota("a", 16, limit=limit), stopped=(GPU,)))
    assert amounts(found["ClusterQueue/a.pool"])[GPU] == {"nominalQuota": "16", "borrowingLimit": "0"}
    assert "borrowingLimit" not in amounts(found["ClusterQueue/a.pool"])["cpu"]


def amounts(document: Object) -> dict[str, dict[str, str]]:
    (group,) = document["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    return {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in flavor["resources"]}


def test_unusable_nodes_and_unmanaged_pods_lower_the_spare_quota() -> None:
    first, second, *rest = POOL.nodes
    nodes = (replace(first, usable=False), replace(second, used={GPU: 3000}), *rest)
    found = objects(make_quota("a", 16), pool=replace(POOL, nodes=nodes))
    assert amounts(found["Cohort/vkgateway.pool"])[GPU] == {"nominalQuota": "5"}


def test_flavor_of_a_pool_without_selector_names_a_label() -> None:
    flavor = objects(spec=replace_spec(node_selector={}))["ResourceFlavor/vkgateway.pool"]
    assert flavor["spec"]["nodeLabels"] == {"kubernetes.io/os": "linux"}


def test_changed_flavor_gets_another_name() -> None:
    names = {
        objects(spec=spec)["ResourceFlavor/vkgateway.pool"]["metadata"]["name"]
        for spec in (SPEC, replace_spec(node_selector={"gpu": "h100"}), replace_spec(levels=("rack",)))
    }
    assert len(names) == 3


def test_topology_ends_with_the_host_name() -> None:
    topology = objects(spec=replace_spec(levels=("domain", "rack")))["Topology/vkgateway.pool"]
    labels = [each["nodeLabel"] for each in topology["spec"]["levels"]]
    assert labels == ["domain", "rack", "kubernetes.io/hostname"]


def test_level_whose_values_are_host_names_is_left_out() -> None:
    """Kueue has one name space for domains of all levels."""
    spec = replace_spec(levels=("domain", "rack"))
    nodes = tuple(replace(node, labels={"domain": "n0", "rack": "r0"}) for node in POOL.nodes)
    pool = replace(POOL, nodes=nodes)
    assert MODE.levels(pool, spec) == ("rack",)
    topology = objects(spec=spec, pool=pool)["Topology/vkgateway.pool"]
    assert [each["nodeLabel"] for each in topology["spec"]["levels"]] == ["rack", "kubernetes.io/hostname"]


def test_tenant_without_preemption_preempts_nothing_of_its_own() -> None:
    queue = objects(replace(make_quota("a", 8), preempts=False))["ClusterQueue/a.pool"]
    assert queue["spec"]["preemption"]["withinClusterQueue"] == "Never"


def test_guarantee_of_devices_includes_its_share_of_cpu() -> None:
    """Otherwise, Kueue would count each guaranteed gang as borrowing cpu, behind older borrowing gangs."""
    named = replace(make_quota("c"), guarantee={"cpu": 56_000})
    found = objects(make_quota("a", 16), make_quota("b", 8), named)
    cpu = {name: amounts(found[f"ClusterQueue/{name}.pool"])["cpu"]["nominalQuota"] for name in "abc"}
    assert cpu == {"a": "100", "b": "50", "c": "56"}
    assert amounts(found["Cohort/vkgateway.pool"])["cpu"] == {"nominalQuota": "50"}
