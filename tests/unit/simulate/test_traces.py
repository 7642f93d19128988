"""Readers of traces, nodes and tenants: small samples of each format, and errors."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.unit.arbiter.simulated_cluster import Cluster, make_gang, make_node
from tests.unit.arbiter.simulated_cluster import make_quota as arbiter_quota
from tests.unit.simulate.scenarios import job
from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Requirement, Snapshot
from vkgateway_platform.simulate import tenants
from vkgateway_platform.simulate.cluster import equal_nodes
from vkgateway_platform.simulate.scenario import GPU, POOL
from vkgateway_platform.simulate.traces import decision_log, kubernetes, kueue, openb, philly
from vkgateway_platform.simulate.traces.adaptation import adapt_jobs, limit_runs, scale_load, select_window
from vkgateway_platform.simulate.traces.errors import TraceError
from vkgateway_platform.simulate.traces.synthetic import WorkloadParameters, generate_jobs

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-0,64000,262144,2,P100
node-1,96000,393216,8,V100M32
cpu-only,96000,393216,0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,12000,16384,1,1000,,LS,Running,0,600,10
pod-1,6000,12288,1,460,V100M16|V100M32,BE,Succeeded,20,120,20
pod-2,6000,12288,8,1000,,Burstable,Succeeded,30,90,
pod-3,6000,12288,0,0,,LS,Running,30,90,30
pod-4,6000,12288,1,1000,,LS,Pending,30,,
pod-5,6000,12288,1,1000,,LS,Failed,90,90,90
"""


def rows(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(text.splitlines()))


# openb


def test_openb_nodes_with_gpus_make_a_pool() -> None:
    (pool,) = openb.read_nodes(rows(NODES))
    assert [(one.name, one.allocatable[GPU], one.labels["model"]) for one in pool.nodes] == [
        ("node-0", 2000, "P100"),
        ("node-1", 8000, "V100M32"),
    ]
    assert pool.nodes[0].allocatable["cpu"] == 64_000
    assert pool.nodes[0].allocatable["memory"] == 262_144 * 1024 * 1024 * 1000


def test_nodes_may_name_pools() -> None:
    pools = openb.read_nodes([{"sn": "a", "gpu": 8, "pool": "a100"}, {"sn": "b", "gpu": 4, "pool": "v100"}])
    assert [pool.key[1] for pool in pools] == ["a100", "v100"]


def test_nodes_of_a_live_cluster_are_those_that_kubectl_prints() -> None:
    def item(name: str, spec: dict[str, Any], **allocatable: str) -> dict[str, Any]:
        resources = {"cpu": "64", "memory": "256Gi", **{f"nvidia.com/{key}": each for key, each in allocatable.items()}}
        return {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec, "status": {"allocatable": resources}}

    taint = {"key": "gpu", "effect": "NoSchedule"}
    items = [item("n0", {}, gpu="8"), item("n1", {"unschedulable": True, "taints": [taint]}, gpu="8"), item("cpu", {})]
    (pool,) = kubernetes.read_nodes({"kind": "List", "items": items})
    assert [(one.name, one.allocatable[GPU], one.usable, len(one.taints)) for one in pool.nodes] == [
        ("n0", 8000, True, 0),
        ("n1", 8000, False, 1),
    ]
    assert (pool.governed, pool.nodes[0].allocatable["cpu"], pool.nodes[0].labels) == ((GPU,), 64_000, {"a": "b"})
    with pytest.raises(TraceError, match="not a list of nodes"):
        kubernetes.read_nodes({"items": [{"kind": "Pod"}]})
    assert kubernetes.read_nodes({"items": [item("cpu", {})]}) == ()


def test_openb_pods_that_ran_on_gpus_are_jobs() -> None:
    jobs = list(openb.read_pods(rows(PODS), ["a", "b"]))
    assert [(one.id, one.submitted, one.run, one.band) for one in jobs] == [
        ("pod-0", 0.0, 590.0, GUARANTEED),
        ("pod-1", 20.0, 100.0, LOW),
        ("pod-2", 30.0, 60.0, LOW),
    ]
    assert [one.shapes[0].amount_of(GPU) for one in jobs] == [1000, 460, 8000]
    assert jobs[1].shapes[0].terms == ((Requirement(key="model", operator="In", values=("V100M16", "V100M32")),),)
    assert {one.tenant for one in jobs} <= {"a", "b"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_gpu", "many", "pod pod-0: num_gpu 'many' is not a number"),
        ("qos", "Best", "pod pod-0: qos 'Best' does not exist"),
        ("creation_time", None, "pod 1 has no creation_time"),
    ],
)
def test_openb_errors_name_pod_field_and_value(field: str, value: str | None, message: str) -> None:
    row = rows(PODS)[0] | {field: value}
    with pytest.raises(TraceError, match=message):
        list(openb.read_pods([row], ["a"]))


# Philly

PHILLY: list[dict[str, Any]] = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:00:10",
                "end_time": "2017-10-07 01:01:10",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 01:02:00",
                "end_time": "2017-10-07 01:03:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu0", "gpu1"]}],
            },
        ],
        "submitted_time": "2017-10-07 01:00:00",
        "user": "ce2b4e",
    },
    {
        "status": "Killed",
        "vc": "6214e9",
        "jobid": "application_2",
        "attempts": [{"start_time": "2017-10-07 02:00:00", "end_time": None, "detail": []}],
        "submitted_time": "2017-10-07 02:00:00",
        "user": "x",
    },
]


def test_philly_jobs_have_the_gpus_of_their_last_attempt_and_the_time_of_all() -> None:
    (one,) = philly.read_jobs(json.dumps(PHILLY).encode(), low=0.0)
    assert (one.tenant, one.submitted, one.run, one.band) == ("ee9e8c", 0.0, 120.0, GUARANTEED)
    assert [shape.amount_of(GPU) for shape in one.shapes] == [2000, 1000]
    (other,) = philly.read_jobs(json.dumps(PHILLY).encode(), low=1.0)
    assert other.band is LOW


def test_philly_errors_name_what_is_wrong() -> None:
    with pytest.raises(TraceError, match="not a cluster_job_log"):
        philly.read_jobs(b"{}", low=0.0)
    wrong = [PHILLY[0] | {"submitted_time": "yesterday"}]
    with pytest.raises(TraceError, match="application_1: time 'yesterday'"):
        philly.read_jobs(json.dumps(wrong).encode(), low=0.0)


# Kueue

KUEUE = """
cohorts:
  - className: cohort
    count: 5
    queuesSets:
    - className: cq
      count: 6
      nominalQuota: 20
      borrowingLimit: 100
      reclaimWithinCohort: Any
      withinClusterQueue: LowerPriority
      workloadsSets:
      - count: 350
        creationIntervalMs: 100
        workloads:
        - {className: small, runtimeMs: 200, priority: 50, request: 1}
      - count: 100
        creationIntervalMs: 500
        workloads:
        - {className: medium, runtimeMs: 500, priority: 100, request: 5}
      - count: 50
        creationIntervalMs: 1200
        workloads:
        - {className: large, runtimeMs: 1000, priority: 200, request: 20}
"""


def test_kueues_generator_makes_pools_quotas_and_jobs() -> None:
    pools, quotas, jobs = kueue.read_generator(yaml.safe_load(KUEUE))
    assert (len(pools), len(quotas), len(jobs)) == (5, 30, 15_000)
    assert pools[0].nodes[0].allocatable == {GPU: 120_000}
    assert (quotas[0].guarantee, quotas[0].limit) == ({GPU: 20_000}, {GPU: 120_000})
    large = [one for one in jobs if one.id.endswith("large")]
    assert {(one.run, one.priority, one.shapes[0].amount_of(GPU)) for one in large} == {(1.0, 200, 20_000)}
    assert max(one.submitted for one in large) == pytest.approx(49 * 1.2)


def test_kueues_generator_refuses_other_documents() -> None:
    with pytest.raises(TraceError, match="not a generator"):
        kueue.read_generator({"cohorts": [{"className": "x"}]})


# The decision log


def recorded() -> list[tuple[float, Snapshot]]:
    """Return cycles in which a low gang is evicted for a guaranteed one, runs again and ends."""
    there = Cluster([make_node("n0")], [arbiter_quota("a", 8), arbiter_quota("b")])
    there.add(make_gang("b/low", "b", [8], band=LOW))
    there.run_times = {"b/low": 40.0, "a/in": 20.0}
    cycles = []
    for second in range(140):
        if second == 5:
            there.add(make_gang("a/in", "a", [8]))
        cycles.append((there.now, there.snapshot()))
        there.cycle()
        there.advance(1)
    assert not there.gangs
    return cycles


def test_decision_log_yields_submissions_and_run_times() -> None:
    found = decision_log.read_decisions(recorded())
    assert {one.id: (one.submitted, one.band) for one in found.jobs} == {"b/low": (0.0, LOW), "a/in": (5.0, GUARANTEED)}
    assert {one.id: one.run for one in found.jobs} == pytest.approx({"b/low": 40, "a/in": 20}, abs=1)
    assert [each.tenant for each in found.quotas] == ["a", "b"]
    assert (found.unknown, len(found.pools)) == (0, 1)


def test_decision_log_has_tenants_and_nodes_from_after_its_beginning() -> None:
    cycles = recorded()
    start, snapshot = cycles[0]
    empty = replace(snapshot, pools=tuple(replace(each, nodes=()) for each in snapshot.pools), quotas=(), gangs=())
    found = decision_log.read_decisions([(start - 1, empty), *cycles])
    assert [each.tenant for each in found.quotas] == ["a", "b"]
    assert [len(each.nodes) for each in found.pools] == [1]


def test_usage_log_yields_more_exact_ends() -> None:
    cycles = recorded()
    thin = [each for number, each in enumerate(cycles) if number < 30 or number % 25 == 0]
    late = {one.id: one.run for one in decision_log.read_decisions(thin).jobs}
    exact = {one.id: one.run for one in decision_log.read_decisions(thin, {"a/in": cycles[0][0] + 40.5}).jobs}
    assert exact["a/in"] < late["a/in"]


def test_gang_without_end_runs_as_long_as_its_kind() -> None:
    cycles = recorded()
    found = {one.id: one.run for one in decision_log.read_decisions(cycles[:30]).jobs}
    assert found == {"a/in": pytest.approx(9, abs=2)}
    assert decision_log.read_decisions(cycles[:30]).unknown == 1  # b/low waits, and nothing has ended
    found = {one.id: one.run for one in decision_log.read_decisions(cycles[:45]).jobs}
    assert found["b/low"] == found["a/in"] == pytest.approx(20, abs=1)
    found = {one.id: one.run for one in decision_log.read_decisions(cycles[:30], {"a/in": cycles[0][0] + 35}).jobs}
    assert found["a/in"] == pytest.approx(14, abs=2)


def test_an_empty_log_is_refused() -> None:
    with pytest.raises(TraceError, match="no cycle"):
        decision_log.read_decisions([])


# Tenants


POOL_ENTRY = {"name": "pool", "guarantee": {GPU: 8}, "limit": {GPU: "16"}, "weight": 2, "cells": [4, 4]}


@pytest.mark.parametrize(
    "document",
    [
        [{"name": "a", "pools": [{key: value for key, value in POOL_ENTRY.items() if key != "name"}]}],
        {"tenants": [{"name": "a", "pools": [POOL_ENTRY]}]},
        {"kind": "Tenant", "metadata": {"name": "a"}, "spec": {"pools": [POOL_ENTRY]}},
        {"kind": "List", "items": [{"metadata": {"name": "a"}, "spec": {"pools": [POOL_ENTRY]}}]},
    ],
)
def test_tenants_are_lists_or_manifests(document: object) -> None:
    (found,) = tenants.read_quotas([document], [equal_nodes(4, 8)])
    assert (found.tenant, found.pool, found.weight, found.cells) == ("a", POOL, 2.0, (4, 4))
    assert (found.guarantee, found.limit) == ({GPU: 8000}, {GPU: 16_000})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no tenants"),
        ([{"pools": []}], "has no name"),
        ([{"name": "a", "pools": [{"name": "h100"}]}], "pool 'h100' does not exist"),
        ([{"name": "a", "pools": [{"weight": "heavy"}]}], "tenant a: "),
        ([{"name": "a", "pools": [{"guarantee": {GPU: "lots"}}]}], "tenant a: "),
        (["a"], "'a' is not a mapping"),
    ],
)
def test_tenant_errors_name_the_field(document: object, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        tenants.read_quotas([document], [equal_nodes(4, 8)])


# Synthetic, parts of traces, and clusters that tell less


def test_synthetic_jobs_request_the_load() -> None:
    work = WorkloadParameters(gpus=64, tenants=("a", "b"), load=0.9, duration=36_000)
    jobs = generate_jobs(work, random.Random(3))
    requested = sum(one.run * sum(shape.amount_of(GPU) for shape in one.shapes) / 1000 for one in jobs)
    assert requested == pytest.approx(0.9 * 64 * 36_000, rel=0.3)
    assert all(0 <= one.submitted <= 36_000 and 60 <= one.run <= 43_200 for one in jobs)
    assert generate_jobs(work, random.Random(3)) == jobs


def test_window_contains_gangs_that_ran_at_its_start() -> None:
    jobs = [job("a/0", 1, at=0, run=50), job("a/1", 1, at=80, run=50), job("a/2", 1, at=120), job("a/3", 1, at=900)]
    assert [(one.id, one.submitted, one.run) for one in select_window(jobs, 100, 200)] == [
        ("a/1", 0.0, 30.0),
        ("a/2", 20.0, 100.0),
    ]


def test_trace_is_compressed_to_a_load() -> None:
    jobs = limit_runs([job("a/0", 8, at=0, run=50), job("a/1", 8, at=1000, run=900)], 100)
    moved, length = scale_load(jobs, [equal_nodes(1, 8)], 1.5)
    assert length == pytest.approx(150 / 1.5)
    assert [(one.submitted, one.run) for one in moved] == [(0.0, 50), (pytest.approx(length), 100)]


def test_jobs_drop_requests_that_no_node_offers() -> None:
    (one,) = (each for each in openb.read_pods(rows(PODS), ["a"]) if each.id == "pod-1")
    (bare,) = adapt_jobs([one], [equal_nodes(1, 8)])
    assert bare == replace(one, shapes=bare.shapes)
    assert (bare.shapes[0].requests, bare.shapes[0].terms) == (((GPU, 460),), ())
    assert adapt_jobs([one], openb.read_nodes(rows(NODES))) == (one,)
