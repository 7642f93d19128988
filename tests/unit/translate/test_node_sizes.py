"""Pod and node sizes: which nodes count, verdicts, and the patch that restricts a pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.patches import apply_strategic_patch
from vkgateway.api.objects import Meta, NodeStatusView, NodeView
from vkgateway.api.requests import MilliResources
from vkgateway.clusters.node_sizes import (
    PoolNodeSizes,
    SizeVerdict,
    admit_patch,
    fits_any,
    judge_size,
    largest_nodes,
    rejection_reason,
    size_gate_policy,
)

GIB = 1024**3 * 1000


def size(cpu: int, gib: int = 64, **more: int) -> MilliResources:
    return {"cpu": cpu * 1000, "memory": gib * GIB, **more}


def machine(name: str, cpu: int, gib: int = 64, **more: str) -> NodeView:
    allocatable = {"cpu": str(cpu), "memory": f"{gib}Gi", "pods": "110", "nvidia.com/gpu": "8", **more}
    return NodeView(metadata=Meta(name=name), status=NodeStatusView(allocatable=allocatable))


def pool(node: str, *usable: MilliResources, also: tuple[MilliResources, ...] = ()) -> PoolNodeSizes:
    return PoolNodeSizes(virtual_node=node, usable_sizes=usable, all_sizes=usable + also)


def test_largest_nodes_are_not_exceeded_by_others() -> None:
    nodes = [machine("a", 8), machine("b", 8), machine("c", 96, 32), machine("d", 96, 16), machine("e", 4)]
    assert largest_nodes(nodes) == (size(8), size(96, 32))
    assert largest_nodes([]) == ()


SIZES = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(st.lists(SIZES, max_size=6), SIZES)
def test_pod_that_fits_any_node_fits_a_largest_one(machines: list[tuple[int, int]], requests: tuple[int, int]) -> None:
    nodes = [machine(str(at), *each) for at, each in enumerate(machines)]
    anywhere = any(cpu >= requests[0] and gib >= requests[1] for cpu, gib in machines)
    assert fits_any(size(*requests), largest_nodes(nodes)) is anywhere


@pytest.mark.parametrize(
    ("requests", "fit"),
    [
        (size(96), True),
        (size(97), False),
        ({"cpu": 500, "pods": 1000, "nvidia.com/gpu": 99_000}, True),
        ({"hugepages-2Mi": 1000}, False),
        ({"hugepages-2Mi": 0, "ephemeral-storage": 0}, True),
        ({"ephemeral-storage": 1}, False),
        (size(96, 65), False),
    ],
)
def test_pod_must_fit_one_node_in_every_resource(requests: MilliResources, fit: bool) -> None:
    assert fits_any(requests, [size(4), size(96)]) is fit


def test_two_nodes_do_not_add_up() -> None:
    machines = [size(96, 32), size(8, 512)]
    assert not fits_any(size(90, 100), machines)
    assert rejection_reason(size(90, 100), machines) == (
        "OutOfcpu",
        "no machine of the pool has cpu 90, memory 100Gi together",
    )
    assert rejection_reason(size(2, 600), machines) == (
        "OutOfmemory",
        "no machine of the pool has memory 600Gi; a pod can have memory 512Gi at most",
    )
    assert rejection_reason(size(90, 10), machines) is None
    assert rejection_reason(size(90, 10), []) is None, "its machines may come back"


def test_pod_is_admitted_to_pools_with_a_large_enough_node() -> None:
    small, big, other = pool("small", size(8)), pool("big", size(96)), pool("other", size(128))
    assert judge_size(size(4), [small, big]) == SizeVerdict(nodes=("small", "big"))
    assert judge_size(size(90), [small, big]) == SizeVerdict(nodes=("big",), is_narrowed=True)
    assert judge_size(size(90), [small, big, other]) == SizeVerdict(nodes=("big", "other"), is_narrowed=True)
    assert judge_size(size(90), []) == SizeVerdict(), "what it selects is another matter"


def test_oversize_message_names_the_maximum_of_each_pool() -> None:
    found = judge_size(size(200), [pool("small", size(8)), pool("big", size(96))])
    assert not found.nodes
    assert found.reason == (
        "no machine of small has cpu 200; a pod can have cpu 8 at most; "
        "no machine of big has cpu 200; a pod can have cpu 96 at most"
    )


def test_pod_waits_for_cordoned_nodes() -> None:
    found = judge_size(size(90), [pool("big", size(8), also=(size(96),))])
    assert (found.is_temporary, found.nodes) == (True, ())
    assert found.reason == "the machines of big that are large enough are not usable now"


GATED: dict[str, Any] = {
    "metadata": {"uid": "u1", "name": "web"},
    "spec": {"schedulingGates": [{"name": "vkgateway.io/admission"}], "nodeSelector": {"a": "b"}},
}


def patched(pod: dict[str, Any], judgement: SizeVerdict) -> dict[str, Any]:
    spec: dict[str, Any] = apply_strategic_patch(pod, admit_patch(pod, judgement))["spec"]
    assert not spec.get("schedulingGates")
    return spec


def test_pod_that_fits_everywhere_is_ungated_only() -> None:
    assert patched(GATED, SizeVerdict(nodes=("a", "b"))) == {"nodeSelector": {"a": "b"}, "schedulingGates": []}


def test_pod_that_fits_one_virtual_node_is_restricted_to_it() -> None:
    spec = patched(GATED, SizeVerdict(nodes=("big",), is_narrowed=True))
    assert spec["nodeSelector"] == {"a": "b", "kubernetes.io/hostname": "big"}


@pytest.mark.parametrize(
    "terms", [[], [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}, {"matchFields": []}]]
)
def test_pod_that_fits_several_is_restricted_in_each_term(terms: list[dict[str, Any]]) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}} if terms else {}
    pod = {**GATED, "spec": {**GATED["spec"], "affinity": affinity}}
    spec = patched(pod, SizeVerdict(nodes=("big", "other"), is_narrowed=True))
    found = spec["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    only = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["big", "other"]}
    assert [term["matchExpressions"][-1] for term in found] == [only] * max(1, len(terms))
    assert [term["matchExpressions"][:-1] for term in found] == [
        term.get("matchExpressions", []) for term in terms or [{}]
    ]


def test_size_gate_policy_names_each_size_once() -> None:
    policy, binding = size_gate_policy([(size(96),), (size(96),), (size(8), size(2, 512))], api_version="a/v1")
    expression = policy["spec"]["matchConditions"][-1]["expression"]
    assert expression.count('"cpu": 96.0') == 1
    assert '"cpu": 8.0' in expression
    assert '"memory": 549755813888.0' in expression
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert policy["spec"]["failurePolicy"] == "Ignore"
    nothing, _ = size_gate_policy([()], api_version="a/v1")
    assert nothing["spec"]["matchConditions"][-1]["expression"] == "false"
