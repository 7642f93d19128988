"""Governed pods: requests, gates and bands, the ungate patch, and reachable virtual nodes."""

from typing import Any

import pytest

from tests.fakes.patches import apply_strategic_patch
from tests.unit.translate.samples import POOL, container, pod
from vkgateway.api.objects import Taint
from vkgateway.api.requests import is_extended
from vkgateway.kinds.pods.translation.to_compute import pod_band
from vkgateway.scheduler.governed import (
    CORDON_TAINT,
    VirtualNode,
    governed_requests,
    has_gate,
    has_pod_constraints,
    is_governed,
    other_gates,
    reachable_nodes,
    ungate_patch,
    unreachable_reason,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
GPU = "nvidia.com/gpu"
OURS = {"name": "vkgateway.io/admission"}


def asking(amount: Any, name: str = "app", *, kind: str = "limits", **more: Any) -> dict[str, Any]:
    return container(name, **{"resources": {kind: {GPU: amount, "cpu": "2"}}, **more})


@pytest.mark.parametrize(
    ("resource", "extended"),
    [
        (GPU, True),
        ("example.com/dongle", True),
        ("notkubernetes.io/gpu", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("ephemeral-storage", False),
        ("kubernetes.io/batch-cpu", False),
        ("x.kubernetes.io/y", False),
        ("requests.nvidia.com/gpu", False),
    ],
)
def test_extended_resources(resource: str, extended: bool) -> None:
    assert is_extended(resource) == extended


def test_governed_requests() -> None:
    wanted = pod(
        containers=[asking("2"), asking(1, "second", kind="requests")],
        initContainers=[asking(1, "side", restartPolicy="Always"), asking("8", "first")],
    )
    assert governed_requests(wanted) == {GPU: 9000}
    assert is_governed(wanted)


@pytest.mark.parametrize("containers", [[container()], [asking("0")], []])
def test_pod_without_device_requests_is_not_governed(containers: list[dict[str, Any]]) -> None:
    assert governed_requests(pod(containers=containers, overhead={GPU: "1"})) == {}
    assert not is_governed(pod(containers=containers))


def test_gates() -> None:
    gated = pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}, OURS, {"name": "a.example.com/b"}])
    assert has_gate(gated)
    assert other_gates(gated) == ("kueue.x-k8s.io/admission", "a.example.com/b")
    free = pod(schedulingGates=[{"name": "vkgateway.io/admissions"}])
    assert not has_gate(free)
    assert other_gates(pod()) == ()


@pytest.mark.parametrize(
    ("spec", "band"),
    [
        ({}, "guaranteed"),
        ({"priorityClassName": "vkgateway-guaranteed", "priority": 0}, "guaranteed"),
        ({"priorityClassName": "mine", "priority": 10}, "guaranteed"),
        ({"priorityClassName": "mine", "priority": -1}, "low"),
        ({"priorityClassName": "vkgateway-low"}, "low"),
        ({"priorityClassName": "vkgateway-low", "priority": 7}, "low"),
        ({"priority": None}, "guaranteed"),
    ],
)
def test_bands(spec: dict[str, Any], band: str) -> None:
    assert pod_band(spec) == band


def test_ungate_patch_removes_only_the_vkgateway_gate() -> None:
    assert ungate_patch("6c5f", {"kubernetes.io/hostname": "a100.local"}) == {
        "metadata": {"uid": "6c5f"},
        "spec": {
            "schedulingGates": [{"$patch": "delete", "name": "vkgateway.io/admission"}],
            "nodeSelector": {"kubernetes.io/hostname": "a100.local"},
        },
    }


def test_ungate_patch_applied_by_a_server() -> None:
    mine = {"name": "a.example.com/b"}
    gated = free(schedulingGates=[mine, OURS], nodeSelector={"zone": "z1"})
    after = apply_strategic_patch(gated, ungate_patch("6c5f", {"kubernetes.io/hostname": "a100.local"}))["spec"]
    assert after == {
        **gated["spec"],
        "schedulingGates": [mine],
        "nodeSelector": {"zone": "z1", "kubernetes.io/hostname": "a100.local"},
    }


def virtual(pool: str, *taints: Taint, **labels: str) -> VirtualNode:
    return {"kubernetes.io/hostname": f"{pool}.local", "vkgateway.io/pool": pool, "size": "8", **labels}, taints


NODES = {"a100.local": virtual("a100"), "v100.local": virtual("v100", zone="z1"), "h100.local": virtual("h100")}
ALL = tuple(NODES)


def free(**spec: Any) -> dict[str, Any]:
    wanted = pod(**spec)
    del wanted["spec"]["nodeName"]
    return wanted


def affinity(*, required: Any = None, preferred: Any = ()) -> dict[str, Any]:
    made: dict[str, Any] = {PREFERRED: list(preferred)} if preferred else {}
    if required is not None:
        made[REQUIRED] = {"nodeSelectorTerms": required}
    return {"nodeAffinity": made}


def on(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(*names: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(names)}]}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({}, ALL),
        ({"nodeSelector": {"vkgateway.io/pool": "v100"}}, ("v100.local",)),
        ({"nodeSelector": {"vkgateway.io/pool": "v100", "zone": "z2"}}, ()),
        ({"nodeSelector": {"unknown": "x"}}, ()),
        ({"affinity": affinity(required=[on("zone", "DoesNotExist")])}, ("a100.local", "h100.local")),
        ({"affinity": affinity(required=[on("zone", "Exists"), named("h100.local")])}, ("v100.local", "h100.local")),
        ({"affinity": affinity(required=[{**on("zone", "Exists"), **named("h100.local")}])}, ()),
        ({"affinity": affinity(required=[on("size", "Gt", "7"), {}])}, ALL),
        ({"affinity": affinity(required=[on("size", "Gt", "8"), {}])}, ()),
        ({"affinity": {"nodeAffinity": None, "podAffinity": {}}}, ALL),
    ],
)
def test_nodes_that_selector_and_required_affinity_allow(spec: dict[str, Any], names: tuple[str, ...]) -> None:
    assert reachable_nodes(free(**spec), NODES) == names


def test_preferences_order_by_the_sum_of_their_weights() -> None:
    liked = [
        {"weight": 5, "preference": named("h100.local")},
        {"weight": 3, "preference": on("zone", "In", "z1")},
        {"weight": 3, "preference": on("vkgateway.io/pool", "In", "v100", "none")},
        {"weight": 100, "preference": {}},
    ]
    assert reachable_nodes(free(affinity=affinity(preferred=liked)), NODES) == (
        "v100.local",
        "h100.local",
        "a100.local",
    )
    among = affinity(preferred=liked, required=[named("a100.local", "h100.local")])
    assert reachable_nodes(free(affinity=among), NODES) == ("h100.local", "a100.local")


def test_bound_pod_reaches_its_node_only() -> None:
    assert reachable_nodes(pod(nodeName="v100.local", nodeSelector={"vkgateway.io/pool": "a100"}), NODES) == (
        "v100.local",
    )
    assert reachable_nodes(pod(nodeName="gone.local"), NODES) == ()


@pytest.mark.parametrize(
    ("taint", "toleration", "allowed"),
    [
        (Taint(key="k", value="v", effect="NoSchedule"), {}, False),
        (Taint(key="k", value="v", effect="NoExecute"), {}, False),
        (Taint(key="k", value="v", effect="PreferNoSchedule"), {}, True),
        (Taint(key="k", value="v", effect="NoSchedule"), {"key": "k", "value": "v"}, True),
        (Taint(key="k", value="v", effect="NoSchedule"), {"key": "k", "operator": "Equal", "value": "w"}, False),
        (Taint(key="k", value="v", effect="NoSchedule"), {"key": "k", "operator": "Exists"}, True),
        (Taint(key="k", value="v", effect="NoSchedule"), {"key": "l", "operator": "Exists"}, False),
        (Taint(key="k", value="v", effect="NoSchedule"), {"operator": "Exists"}, True),
        (Taint(key="k", value="v", effect="NoExecute"), {"operator": "Exists", "effect": "NoSchedule"}, False),
        (Taint(key="k", value="5", effect="NoSchedule"), {"key": "k", "operator": "Gt", "value": "4"}, True),
        (Taint(key="k", value="5", effect="NoSchedule"), {"key": "k", "operator": "Lt", "value": "4"}, False),
    ],
)
def test_virtual_node_taints(taint: Taint, toleration: dict[str, Any], allowed: bool) -> None:
    tolerations = [toleration] if toleration else None
    found = reachable_nodes(free(tolerations=tolerations), {"a100.local": virtual("a100", taint)})
    assert found == (("a100.local",) if allowed else ())


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"nodeSelector": {"unknown": "x"}}, "no virtual node matches its node selector and affinity; "
            "available virtual nodes: a100.local, v100.local"),
        ({}, "virtual node a100.local is cordoned; "
         "virtual node v100.local has a taint that it does not tolerate: k=v:NoSchedule"),
        ({"nodeSelector": {"vkgateway.io/pool": "a100"}}, "virtual node a100.local is cordoned"),
    ],
)  # fmt: skip
def test_unreachable_reasons(spec: dict[str, Any], why: str) -> None:
    taint = Taint(key="k", value="v", effect="NoSchedule")
    nodes = {"a100.local": virtual("a100", CORDON_TAINT, taint), "v100.local": virtual("v100", taint)}
    assert reachable_nodes(free(**spec), nodes) == ()
    assert unreachable_reason(free(**spec), nodes) == why


def test_gateway_node_labels_suffice() -> None:
    nodes: dict[str, VirtualNode] = {POOL.node_name: (POOL.virtual_labels(), ())}
    let_go = ungate_patch("u", {"kubernetes.io/hostname": POOL.node_name})["spec"]["nodeSelector"]
    assert reachable_nodes(free(nodeSelector={**let_go, "type": "virtual-kubelet"}), nodes) == (POOL.node_name,)


@pytest.mark.parametrize(
    ("spec", "follows"),
    [
        ({}, False),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, False),
        ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}}, False),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, True),
        ({"affinity": {"podAffinity": None}}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, True),
    ],
)
def test_pod_constraints(spec: dict[str, Any], follows: bool) -> None:
    assert has_pod_constraints({"spec": spec}) is follows
