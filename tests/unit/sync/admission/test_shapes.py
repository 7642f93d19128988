"""Shapes have exactly the requirements of the compute pod."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.translate.samples import DEFAULT_TOLERATIONS, POOL, container, forward, pod
from vkgateway.api.objects import Object, Taint
from vkgateway.api.requests import pod_requests
from vkgateway.kinds.pods.translation.node_terms import REQUIRED, NodeTerms, term_matches
from vkgateway.scheduler.core.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.scheduler.core.snapshot import Requirement, Shape, Toleration
from vkgateway.scheduler.service.member import shape_of

ZONE, PRODUCT = "topology.kubernetes.io/zone", "nvidia.com/gpu.product"
HOST = "example.com/host"
"""Label of host names, which does not count as a node label."""
HERE = {"platform.vkgateway.io/pool": "a100", "kubernetes.io/os": "linux", PRODUCT: "A100"}
REAL_NODES: dict[str, dict[str, str]] = {
    "host-1": {**HERE, "kubernetes.io/hostname": "host-1", HOST: "host-1", ZONE: "z1"},
    "host-2": {**HERE, "kubernetes.io/hostname": "host-2", ZONE: "z2", "slot": "4"},
    "host-3": {**HERE, "kubernetes.io/hostname": "host-3"},
}
VIRTUAL_NODES = {POOL.node_name: POOL.virtual_labels()}
BY_HAND = {"phase": "Pending"}
CARRIED = POOL.carried_labels | {"slot"}
THE_POOL = replace(POOL, carried_labels=CARRIED)


def make_shape(spec: Object) -> Shape:
    return shape_of(spec, carried=CARRIED, nodes=VIRTUAL_NODES)


def nodes_of(compute_pod: Object) -> list[str]:
    """Return the real nodes that match a compute pod's node selector and required node affinity."""
    spec = compute_pod["spec"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return [
        name
        for name, labels in REAL_NODES.items()
        if spec["nodeSelector"].items() <= labels.items()
        and (
            REQUIRED not in affinity
            or any(term_matches(term, name=name, labels=labels) for term in affinity[REQUIRED]["nodeSelectorTerms"])
        )
    ]


def check_agreement(spec: Object) -> None:
    """Compare the shape with the compute pod: nodes, taints, resources and images."""
    compute_pod, found = forward(spec, pool=THE_POOL), make_shape(spec)
    assert [name for name, labels in REAL_NODES.items() if matches_terms(found.terms, labels)] == nodes_of(compute_pod)
    below = [
        Toleration(
            key=entry.get("key", ""),
            operator=entry.get("operator", "Equal"),
            value=entry.get("value", ""),
            effect=entry.get("effect", ""),
        )
        for entry in compute_pod["spec"]["tolerations"]
    ]
    for key in ("mine", "node.kubernetes.io/not-ready", "node.kubernetes.io/unschedulable", "vkgateway.io/drain"):
        for effect in ("NoSchedule", "NoExecute"):
            taints = [Taint(key=key, value="1", effect=effect)]
            assert has_untolerated_taint(found.tolerations, taints) == has_untolerated_taint(below, taints)
    assert dict(found.requests) == {name: amount for name, amount in pod_requests(compute_pod).items() if amount}
    containers = compute_pod["spec"]["containers"] + compute_pod["spec"].get("initContainers", [])
    assert found.images == {one["image"] if ":" in one["image"] else f"{one['image']}:latest" for one in containers}


def match_expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def require_terms(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    alternatives = [{"matchExpressions": term} for term in terms]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": alternatives}}}}


GPUS: dict[str, Any] = {
    "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "500m", "nvidia.com/gpu": "8"}}
}
HERE_ABOVE, ELSEWHERE = (
    match_expression("vkgateway.io/pool", "In", "a100"),
    match_expression("vkgateway.io/pool", "In", "v100"),
)
NAMED = {"matchFields": [match_expression("metadata.name", "In", POOL.node_name)]}


@pytest.mark.parametrize(
    "spec",
    [
        pod(),
        pod(containers=[container(**GPUS), container("side")], initContainers=[container("init", image="init:1")]),
        pod(nodeSelector={ZONE: "z1", "kubernetes.io/hostname": POOL.node_name, "type": "virtual-kubelet"}),
        pod(nodeSelector={"team.example.com/mine": "yes"}),
        pod(nodeSelector={"team.example.com/mine": "yes"}, status=BY_HAND),
        pod(**require_terms([match_expression(ZONE, "In", "z1", "z2"), match_expression(PRODUCT, "Exists")])),
        pod(
            **require_terms([match_expression(ZONE, "NotIn", "z1")], [match_expression("slot", "Gt", "3")]),
            nodeSelector={PRODUCT: "A100"},
        ),
        pod(**require_terms([HERE_ABOVE, match_expression(ZONE, "In", "z2")], [ELSEWHERE])),
        pod(**require_terms([ELSEWHERE, match_expression(ZONE, "In", "z2")], [match_expression(ZONE, "In", "z1")])),
        pod(**require_terms([HERE_ABOVE], [match_expression(ZONE, "In", "z1")])),
        pod(**require_terms([match_expression("unknown.example.com/x", "DoesNotExist")])),
        pod(**require_terms([match_expression(HOST, "NotIn", "host-1")])),
        pod(**require_terms([match_expression("platform.vkgateway.io/pool", "DoesNotExist")])),
        pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NAMED, {"matchExpressions": []}]}}}),
        pod(
            affinity={
                "nodeAffinity": {
                    REQUIRED: {"nodeSelectorTerms": [{**NAMED, "matchExpressions": [match_expression(ZONE, "Exists")]}]}
                }
            }
        ),
        pod(tolerations=[{"operator": "Exists"}]),
        pod(tolerations=[{"key": "mine", "value": "1"}, {"key": "node.kubernetes.io/unschedulable"}]),
    ],
)
def test_shape_has_the_requirements_of_the_compute_pod(spec: Object) -> None:
    check_agreement(spec)


VALUES = {
    ZONE: ["z1", "z2", "z3"],
    PRODUCT: ["A100", "H100"],
    "slot": ["4", "5"],
    "type": ["virtual-kubelet"],
    "vkgateway.io/pool": ["a100", "v100"],
    "kubernetes.io/hostname": [POOL.node_name, "host-1"],
    "mine.example.com/x": ["yes"],
    HOST: ["host-1"],
}
keys = st.sampled_from(sorted(VALUES))
values = st.sampled_from(sorted({value for some in VALUES.values() for value in some}))
selectors = st.dictionaries(keys, st.none(), max_size=2).flatmap(
    lambda chosen: st.fixed_dictionaries({key: st.sampled_from(VALUES[key]) for key in chosen})
)
requirements = st.one_of(
    st.builds(match_expression, keys, st.sampled_from(["In", "NotIn"]), values, values),
    st.builds(match_expression, keys, st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(match_expression, keys, st.sampled_from(["Gt", "Lt"]), st.sampled_from(["3", "5"])),
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(requirements, max_size=3),
        "matchFields": st.lists(
            st.builds(match_expression, st.just("metadata.name"), st.sampled_from(["In", "NotIn"]), values), max_size=1
        ),
    },
)


@given(selector=selectors, alternatives=st.lists(terms, max_size=3))
def test_shape_and_compute_pod_agree_on_any_requirement(selector: dict[str, str], alternatives: list[Any]) -> None:
    required = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": alternatives}}}} if alternatives else {}
    spec = pod(nodeSelector=selector, **required)
    assume(NodeTerms(THE_POOL, scheduled=True).find_conflict(spec["spec"]) is None)
    check_agreement(spec)
    waiting = pod(nodeSelector=selector, status=BY_HAND, **required)
    del waiting["spec"]["nodeName"]
    assert make_shape(waiting) == make_shape(spec)


def test_shape_reads_all_fields() -> None:
    spec = pod(
        containers=[container(**GPUS)],
        nodeSelector={ZONE: "z1", "type": "virtual-kubelet"},
        tolerations=[*DEFAULT_TOLERATIONS, DEFAULT_TOLERATIONS[0]],
        **require_terms([match_expression(PRODUCT, "In", "A100")], [match_expression("slot", "Exists")]),
    )
    zone = Requirement(key=ZONE, operator="In", values=("z1",))
    assert shape_of(spec, carried=CARRIED) == Shape(
        requests=(("cpu", 500), ("nvidia.com/gpu", 8000), ("pods", 1000)),
        terms=(
            (zone, Requirement(key=PRODUCT, operator="In", values=("A100",))),
            (zone, Requirement(key="slot", operator="Exists")),
        ),
        tolerations=tuple(
            Toleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect="NoExecute")
            for name in ("not-ready", "unreachable")
        ),
        images=frozenset({"busybox:1"}),
    )


@pytest.mark.parametrize(
    ("image", "called"),
    [
        ("train", "train:latest"),
        ("train:2", "train:2"),
        ("host:5000/team/train", "host:5000/team/train:latest"),
        ("host:5000/team/train@sha256:0", "host:5000/team/train@sha256:0"),
    ],
)
def test_images_are_named_as_on_nodes(image: str, called: str) -> None:
    assert shape_of(pod(containers=[{"name": "main", "image": image}]), carried=CARRIED).images == {called}


def test_pod_for_several_virtual_nodes_may_use_any_alternative() -> None:
    spec = pod(
        **require_terms(
            [HERE_ABOVE, match_expression(ZONE, "In", "z1")], [ELSEWHERE, match_expression(ZONE, "In", "z2")]
        )
    )
    z1, z2 = ((Requirement(key=ZONE, operator="In", values=(zone,)),) for zone in ("z1", "z2"))
    assert shape_of(spec, carried=CARRIED).terms == (z1, z2)
    both = {**VIRTUAL_NODES, "v100.local": {"vkgateway.io/pool": "v100"}}
    assert shape_of(spec, carried=CARRIED, nodes=both).terms == (z1, z2)
    assert shape_of(spec, carried=CARRIED, nodes=VIRTUAL_NODES).terms == (z1,)


GPU = "nvidia.com/gpu"


def container_resources(limits: dict[str, str], requests: dict[str, str] | None = None, **other: Any) -> Object:
    return container(resources={"limits": limits, **({"requests": requests} if requests is not None else {})}, **other)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ({"containers": [container_resources({GPU: "4"})]}, ()),
        ({"containers": [container_resources({GPU: "4"}), container_resources({})]}, ()),
        ({"containers": [container_resources({GPU: "4", "cpu": "2"}, {"cpu": "1"})]}, ()),
        (
            {"containers": [container_resources({GPU: "4"}), container_resources({GPU: "2"})]},
            (((GPU, 4000),), ((GPU, 2000),)),
        ),
        (
            {
                "containers": [container_resources({GPU: "4"})],
                "initContainers": [container_resources({GPU: "2"}, name="i")],
            },
            (),
        ),
        (
            {
                "containers": [container_resources({GPU: "2"})],
                "initContainers": [container_resources({GPU: "4"}, name="i")],
            },
            (((GPU, 4000),), ((GPU, 2000),)),
        ),
        (
            {
                "containers": [container_resources({GPU: "2"})],
                "initContainers": [container_resources({GPU: "1"}, name="i", restartPolicy="Always")],
            },
            (((GPU, 1000),), ((GPU, 2000),)),
        ),
        (
            {"containers": [container_resources({GPU: "1", "cpu": "4", "memory": "1Ki"})]},
            ((("cpu", 4000), ("memory", 1_024_000), (GPU, 1000)),),
        ),
        (
            {"containers": [container_resources({GPU: "1", "cpu": "1500m", "memory": "1Ki"})]},
            ((("memory", 1_024_000), (GPU, 1000)),),
        ),
        (
            {
                "containers": [
                    container_resources({GPU: "1", "cpu": "4", "memory": "1Ki"}),
                    container_resources({"cpu": "1"}),
                ]
            },
            (),
        ),
    ],
)
def test_container_requests_are_listed_unless_one_container_has_all_devices(spec: Object, parts: object) -> None:
    assert make_shape(pod(**spec)).parts == parts
