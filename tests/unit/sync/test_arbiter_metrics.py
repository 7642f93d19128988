"""Metrics of the arbiter."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import REGISTRY

from tests.unit.arbiter.simulated_cluster import GPU, LOW, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict
from vkgateway.scheduler.core.reasons.report import build_summary
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.service import metrics


def metric_value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"vkgateway_{name}", labels)


def test_pool_metrics_are_set_and_removed() -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 4), make_quota("b")])
    there.add(make_gang("a/ns/gang/in", "a", [4]), make_gang("b/ns/gang/low", "b", [2], band=LOW))
    there.run_for(2)
    there.add(make_gang("b/ns/gang/wide", "b", [8, 8]))
    metrics.observe_state(build_summary(there.snapshot(), decide(there.snapshot(), there.now), there.now))
    at = {"pool": "pool.compute", "resource": GPU}
    assert metric_value("arbiter_waiting_gangs", pool="pool.compute") == 1
    assert (metric_value("arbiter_used_units", **at), metric_value("arbiter_borrowed_units", **at)) == (4, 2)
    assert metric_value("arbiter_free_units", **at) == 10
    assert metric_value("arbiter_fragmentation_ratio", **at) == 0.2
    names = ("allocatable", "guaranteed", "kept", "lent", "others")
    assert [metric_value(f"arbiter_{name}_units", **at) for name in names] == [16, 4, 4, 0, 0]
    for tenant, gangs, units in (("a", 0, 0), ("b", 1, 16)):
        assert metric_value("arbiter_tenant_waiting_gangs", tenant=tenant, pool="pool.compute") == gangs
        assert metric_value("arbiter_tenant_waiting_units", tenant=tenant, **at) == units
    metrics.observe_state(ArbiterReport())
    assert metric_value("arbiter_free_units", **at) is None
    assert metric_value("arbiter_waiting_gangs", pool="pool.compute") is None
    assert metric_value("arbiter_tenant_waiting_gangs", tenant="b", pool="pool.compute") is None


def test_the_number_of_series_does_not_depend_on_gangs() -> None:
    there = Cluster([make_node(f"n{number}") for number in range(4)], [make_quota("a", 8), make_quota("b")])
    counts = []
    for number in range(20):
        there.add(make_gang(f"b/ns-{number}/gang/{number}", "b", [1, 1], band=LOW))
        there.add(make_gang(f"a/ns-{number}/gang/{number}", "a", [1, 1]))
        decisions = decide(there.snapshot(), there.now)
        metrics.count_decisions(decisions)
        metrics.observe_state(build_summary(there.snapshot(), decisions, there.now))
        there.run_for(2)
        # These two start with the first eviction.
        late = ("vkgateway_arbiter_evicted_pods", "vkgateway_arbiter_lost_gpu_seconds")
        counts.append(sum(len(found.samples) for found in REGISTRY.collect() if found.name not in late))
    assert len(set(counts)) == 1
    metrics.observe_state(ArbiterReport())
    for tenant in ("a", "b"):
        metrics.forget_tenant(tenant)


def test_borrowed_lost_and_unmanaged_usage_have_metrics() -> None:
    used = replace(make_node("n2"), used={GPU: 3000})
    there = Cluster([make_node("n0"), make_node("n1", usable=False), used], [make_quota("a", 16), make_quota("b")])
    there.add(make_gang("b/ns/gang/low", "b", [8, 2], band=LOW))
    there.run_for(2)
    metrics.observe_state(build_summary(there.snapshot(), decide(there.snapshot(), there.now), there.now))
    at = {"pool": "pool.compute", "resource": GPU}
    names = ("allocatable", "guaranteed", "kept", "lent", "others", "borrowed")
    # 13 GPUs are free, all of them in cells of 8, 4 and 1: all borrowed GPUs are lent by guarantees.
    assert [metric_value(f"arbiter_{name}_units", **at) for name in names] == [16, 16, 13, 10, 3, 10]


def test_a_running_gang_that_waits_for_a_replacement_is_below_its_minimum() -> None:
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a")])
    there.add(make_gang("a/ns/gang/pair", "a", [8, 8]), make_gang("a/ns/gang/waits", "a", [8, 8]))
    there.run_for(2)
    assert below_minimum(there) == 0
    gang = there.gangs["a/ns/gang/pair"]
    lost = replace(gang.pods[1], uid="replacement", state=PodState.WAITING, pool=None, node="")
    there.gangs[gang.id] = replace(gang, pods=(gang.pods[0], lost), minimum=2)
    there.pool = replace(there.pool, nodes=(there.pool.nodes[0],))
    assert below_minimum(there) == 1
    there.gangs[gang.id] = replace(gang, pods=(gang.pods[0], lost), minimum=1)
    assert below_minimum(there) == 0
    there.gangs[gang.id] = replace(gang, pods=gang.pods[:1], minimum=2)  # the other pod has succeeded
    assert below_minimum(there) == 0


def below_minimum(there: Cluster) -> float | None:
    metrics.observe_state(build_summary(there.snapshot(), Decisions(), there.now))
    return metric_value("arbiter_gangs_below_minimum", pool="pool.compute")


def test_decisions_are_counted_by_kind_and_evictions_by_tenant() -> None:
    before = metric_value("arbiter_decisions_total", kind="admit") or 0.0
    admit = Admit(gang="t1/ns/gang/a", pool=("local", "a100"), nodes={"u": "n"}, borrowed=False)
    evict = Evict(gang="t2/ns/gang/b", pods=("v", "w"), whole=True, makes_room_for="x", deadline=1.0, lost=90.0)
    metrics.count_decisions(Decisions(admits=(admit, admit), evicts=(evict,)))
    assert metric_value("arbiter_decisions_total", kind="admit") == before + 2
    assert metric_value("arbiter_evicted_pods_total", tenant="t2") == 2
    assert metric_value("arbiter_lost_gpu_seconds_total", tenant="t2") == 90
    metrics.forget_tenant("t2")
    metrics.forget_tenant("t2")
    assert metric_value("arbiter_evicted_pods_total", tenant="t2") is None


def test_each_phase_of_a_start_has_a_metric() -> None:
    assert all(metric_value("guaranteed_start_seconds_count", term=term) is not None for term in metrics.TERMS)
    before = metric_value("guaranteed_start_seconds_sum", term="notice") or 0.0
    metrics.observe_start("notice", 5.0)
    metrics.observe_start("notice", -1.0)
    assert metric_value("guaranteed_start_seconds_sum", term="notice") == before + 5
    cycles = metric_value("arbiter_cycle_seconds_count") or 0.0
    metrics.observe_cycle(0.01)
    assert metric_value("arbiter_cycle_seconds_count") == cycles + 1
