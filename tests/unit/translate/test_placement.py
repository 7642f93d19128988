"""Node terms, pod affinity, spread and tolerations: dropped, kept, translated, confined."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.translate.samples import POOL, TENANT, forward, pod
from vkgateway.kinds.pods.policy.rules import NODE_AFFINITY, find_refusals

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE = "topology.kubernetes.io/zone"
OURS = {"vkgateway.io/tenant": "alpha"}
BY_HAND = {"phase": "Pending"}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def node_affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    alternatives = [{"matchExpressions": term} for term in terms]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": alternatives}}}


def required_below(*terms: list[dict[str, Any]], status: dict[str, Any] | None = None) -> Any:
    affinity = forward(pod(affinity=node_affinity(*terms), status=status))["spec"].get("affinity")
    if affinity is None:
        return None
    return [term["matchExpressions"] for term in affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]]


@pytest.mark.parametrize(
    ("selector", "kept"),
    [
        ({"type": "virtual-kubelet"}, {}),
        ({"kubernetes.io/hostname": "a100.local"}, {}),
        ({"vkgateway.io/pool": "a100"}, {}),
        ({"node.kubernetes.io/instance-type": "a100"}, {}),
        ({"nvidia.com/gpu.product": "A100"}, {"nvidia.com/gpu.product": "A100"}),
        ({ZONE: "z1"}, {ZONE: "z1"}),
        ({"team.example.com/mine": "yes"}, {}),
        ({"platform.vkgateway.io/pool": "v100"}, {}),
    ],
)
def test_node_selector(selector: dict[str, str], kept: dict[str, str]) -> None:
    made = forward(pod(nodeSelector=selector))["spec"]["nodeSelector"]
    assert made == {**kept, "platform.vkgateway.io/pool": "a100"}


def test_unknown_label_of_a_directly_bound_pod_is_forwarded() -> None:
    made = forward(pod(nodeSelector={"example.com/x": "1"}, status=BY_HAND))["spec"]["nodeSelector"]
    assert made["example.com/x"] == "1"


def test_host_names_are_never_forwarded() -> None:
    wanted = pod(nodeSelector={"kubernetes.io/hostname": "host-17"}, status=BY_HAND)
    assert "kubernetes.io/hostname" not in forward(wanted)["spec"]["nodeSelector"]
    (refusal,) = find_refusals(wanted, tenant=TENANT, pool=POOL)
    assert refusal.rule == NODE_AFFINITY
    assert refusal.field == "spec.nodeSelector[kubernetes.io/hostname]"
    assert refusal.value == "host-17"


def test_required_terms_on_the_virtual_node_are_dropped() -> None:
    virtual = [expression("type", "In", "virtual-kubelet"), expression("vkgateway.io/pool", "Exists")]
    assert required_below(virtual) is None
    product = expression("nvidia.com/gpu.product", "In", "A100", "H100")
    assert required_below([*virtual, product]) == [[product]]


def test_true_alternative_satisfies_all_and_false_ones_are_dropped() -> None:
    here, elsewhere = expression("vkgateway.io/pool", "In", "a100"), expression("vkgateway.io/pool", "In", "v100")
    zone = expression(ZONE, "In", "z1")
    assert required_below([elsewhere], [zone]) == [[zone]]
    assert required_below([zone], [here]) is None


@pytest.mark.parametrize("operator", ["NotIn", "DoesNotExist"])
def test_negative_terms_are_forwarded(operator: str) -> None:
    values = ("z9",) if operator == "NotIn" else ()
    for key in (ZONE, "unknown.example.com/x"):
        assert required_below([expression(key, operator, *values)]) == [[expression(key, operator, *values)]]


def test_tenant_node_label_is_dropped_for_scheduled_pods() -> None:
    mine = expression("team.example.com/mine", "In", "yes")
    assert required_below([mine]) is None
    assert required_below([mine], status=BY_HAND) == [[mine]]


@pytest.mark.parametrize(("operator", "bound", "refused"), [("Gt", "1", True), ("Lt", "5", True)])
def test_numbers_are_compared(operator: str, bound: str, refused: bool) -> None:
    term = expression("vkgateway.io/pool", operator, bound)
    found = find_refusals(pod(affinity=node_affinity([term]), status=BY_HAND), tenant=TENANT, pool=POOL)
    assert bool(found) == refused
    four = replace(POOL, name="4")
    holds = expression("vkgateway.io/pool", operator, bound)
    assert not find_refusals(pod(affinity=node_affinity([holds]), status=BY_HAND), tenant=TENANT, pool=four)


def test_daemon_set_node_name_term_is_dropped() -> None:
    fields = [{"matchFields": [expression("metadata.name", "In", "a100.local")]}]
    made = forward(pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": fields}}}))
    assert "affinity" not in made["spec"]
    other = [{"matchFields": [expression("metadata.name", "In", "v100.local")]}]
    wanted = pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": other}}}, status=BY_HAND)
    assert find_refusals(wanted, tenant=TENANT, pool=POOL)[0].rule == NODE_AFFINITY


ONLY_HOST_9 = expression("metadata.name", "In", "host-9")


def test_compute_node_is_required() -> None:
    assert forward(pod(), compute_node="host-9")["spec"]["affinity"] == {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [ONLY_HOST_9]}]}}
    }
    used_up = pod(
        nodeSelector={"kubernetes.io/hostname": "a100.local"}, affinity=node_affinity([expression("type", "Exists")])
    )
    made = forward(used_up, compute_node="host-9")
    assert made["spec"]["affinity"] == forward(pod(), compute_node="host-9")["spec"]["affinity"]
    assert made["spec"]["nodeSelector"] == {"platform.vkgateway.io/pool": "a100"}
    assert made["metadata"]["annotations"]["vkgateway.io/compute-node"] == "host-9"


def test_compute_node_is_required_in_every_alternative() -> None:
    zone, slot = expression(ZONE, "In", "z1"), expression("nvidia.com/gpu.product", "Exists")
    affinity = node_affinity([zone], [slot])
    affinity["nodeAffinity"][PREFERRED] = [{"weight": 7, "preference": {"matchExpressions": [zone]}}]
    affinity["podAntiAffinity"] = {REQUIRED: [term()]}
    free = forward(pod(affinity=affinity))["spec"]["affinity"]
    made = forward(pod(affinity=affinity), compute_node="host-9")["spec"]["affinity"]
    assert made["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone], "matchFields": [ONLY_HOST_9]},
        {"matchExpressions": [slot], "matchFields": [ONLY_HOST_9]},
    ]
    assert made["nodeAffinity"][PREFERRED] == free["nodeAffinity"][PREFERRED]
    assert made["podAntiAffinity"] == free["podAntiAffinity"]


def test_preferences_on_real_labels_are_kept() -> None:
    def weighted(*expressions: dict[str, Any]) -> dict[str, Any]:
        return {"weight": 7, "preference": {"matchExpressions": list(expressions)}}

    zone, here = expression(ZONE, "In", "z1"), expression("type", "Exists")
    elsewhere = expression("vkgateway.io/pool", "In", "v100")
    preferences = [weighted(zone, here), weighted(here), weighted(zone, elsewhere), weighted(expression("u", "Exists"))]
    made = forward(pod(affinity={"nodeAffinity": {PREFERRED: preferences}}))["spec"]["affinity"]
    assert made == {"nodeAffinity": {PREFERRED: [weighted(zone), weighted(expression("u", "Exists"))]}}


def term(**more: Any) -> dict[str, Any]:
    return {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "web"}}, **more}


def affinity_term(kind: str, given: dict[str, Any]) -> Any:
    made = forward(pod(affinity={kind: {REQUIRED: [given]}}))["spec"].get("affinity")
    return made and made[kind][REQUIRED][0]


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_pod_affinity_is_confined_to_the_tenant(kind: str) -> None:
    assert affinity_term(kind, term())["labelSelector"] == {"matchLabels": {"app": "web", **OURS}}
    assert affinity_term(kind, term(labelSelector={}))["labelSelector"] == {"matchLabels": OURS}
    assert affinity_term(kind, {"topologyKey": ZONE}) == {"topologyKey": ZONE}


def test_namespaces_are_translated() -> None:
    made = affinity_term("podAffinity", term(namespaces=["default", "n" * 60]))
    assert made["namespaces"][0] == "alpha--default"
    assert len(made["namespaces"][1]) == 63


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, {"matchLabels": OURS}),
        (
            {"matchLabels": {"kubernetes.io/metadata.name": "web"}},
            {"matchLabels": {"kubernetes.io/metadata.name": "alpha--web", **OURS}},
        ),
        (
            {"matchExpressions": [expression("kubernetes.io/metadata.name", "NotIn", "a", "b")]},
            {
                "matchExpressions": [expression("kubernetes.io/metadata.name", "NotIn", "alpha--a", "alpha--b")],
                "matchLabels": OURS,
            },
        ),
    ],
)
def test_namespace_selector(selector: dict[str, Any], expected: dict[str, Any]) -> None:
    assert affinity_term("podAntiAffinity", term(namespaceSelector=selector))["namespaceSelector"] == expected


NAMESPACES = {"default": {"team": "x"}, "web": {"team": "x", "tier": "1"}, "db": {"team": "y"}}


@pytest.mark.parametrize(
    ("selector", "named", "expected"),
    [
        ({"matchLabels": {"team": "x"}}, [], ["alpha--default", "alpha--web"]),
        ({"matchLabels": {"team": "x"}}, ["db", "web"], ["alpha--db", "alpha--web", "alpha--default"]),
        ({"matchExpressions": [expression("tier", "DoesNotExist")]}, [], ["alpha--db", "alpha--default"]),
        ({"matchLabels": {"team": "z"}}, ["db"], ["alpha--db"]),
        (
            {"matchLabels": {"kubernetes.io/metadata.name": "web", "team": "x"}},
            [],
            ["alpha--web"],
        ),
    ],
)
def test_namespace_selector_by_labels_becomes_names(
    selector: dict[str, Any], named: list[str], expected: list[str]
) -> None:
    given = term(namespaceSelector=selector, **({"namespaces": named} if named else {}))
    wanted = pod(affinity={"podAntiAffinity": {REQUIRED: [given]}})
    made = forward(wanted, namespaces=NAMESPACES)["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0]
    assert made["namespaces"] == expected
    assert "namespaceSelector" not in made


def test_selector_without_matches_selects_no_namespace() -> None:
    given = term(namespaceSelector={"matchLabels": {"team": "z"}})
    wanted = pod(affinity={"podAntiAffinity": {REQUIRED: [given]}})
    made = forward(wanted, namespaces=NAMESPACES)["spec"]["affinity"]["podAntiAffinity"][REQUIRED][0]
    assert "namespaces" not in made
    assert made["namespaceSelector"] == {
        "matchLabels": OURS,
        "matchExpressions": [expression("vkgateway.io/tenant", "DoesNotExist")],
    }


def test_preferred_pod_affinity_keeps_its_weight() -> None:
    given = {"podAntiAffinity": {PREFERRED: [{"weight": 3, "podAffinityTerm": term()}]}}
    (made,) = forward(pod(affinity=given))["spec"]["affinity"]["podAntiAffinity"][PREFERRED]
    assert made["weight"] == 3
    assert made["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"app": "web", **OURS}


@pytest.mark.parametrize("key", ["type", "vkgateway.io/pool", "node.kubernetes.io/instance-type"])
def test_pool_wide_topology_terms_are_dropped(key: str) -> None:
    assert affinity_term("podAffinity", term(topologyKey=key)) is None
    spread = [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term(topologyKey=key)}]
    assert forward(pod(topologySpreadConstraints=spread))["spec"]["topologySpreadConstraints"] == []


def test_merged_affinity_label_keys_are_not_forwarded() -> None:
    """Compute clusters before 1.31 would drop them."""
    merged = [expression("pod-template-hash", "In", "abc"), expression("app", "NotIn", "web")]
    mine = expression("app", "NotIn", "old")
    given = term(
        matchLabelKeys=["pod-template-hash"],
        mismatchLabelKeys=["app"],
        labelSelector={"matchExpressions": [mine, *merged]},
    )
    made = affinity_term("podAffinity", given)
    assert not {"matchLabelKeys", "mismatchLabelKeys"} & made.keys()
    assert made["labelSelector"] == {"matchExpressions": [mine, *merged], "matchLabels": OURS}


def test_merged_spread_label_keys_are_not_forwarded() -> None:
    """Labels may have changed since: the merged values are those at the pod's creation."""
    merged = expression("pod-template-hash", "In", "abc")
    given = {
        "maxSkew": 1,
        "matchLabelKeys": ["pod-template-hash", "volcano.sh/task-spec"],
        **term(labelSelector={"matchExpressions": [merged]}),
    }
    (made,) = forward(pod(topologySpreadConstraints=[given]))["spec"]["topologySpreadConstraints"]
    assert made["matchLabelKeys"] == ["volcano.sh.tenant-label.vkgateway.io/task-spec"]
    assert made["labelSelector"] == {"matchExpressions": [merged], "matchLabels": OURS}


def test_spread_is_kept_and_confined() -> None:
    given = {"maxSkew": 2, "minDomains": 3, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor", **term()}
    given["matchLabelKeys"] = ["pod-template-hash"]
    (made,) = forward(pod(topologySpreadConstraints=[given]))["spec"]["topologySpreadConstraints"]
    assert made == {**given, "labelSelector": {"matchLabels": {"app": "web", **OURS}}}


@pytest.mark.parametrize(
    "key",
    ["node.kubernetes.io/unschedulable", "node-role.kubernetes.io/control-plane", "vkgateway.io/drain"],
)
def test_platform_taints_are_not_tolerated(key: str) -> None:
    given = [{"key": key, "operator": "Exists"}, {"key": "mine", "operator": "Exists"}]
    assert forward(pod(tolerations=given))["spec"]["tolerations"] == [given[1]]


def test_toleration_of_everything_only_prevents_eviction() -> None:
    made = forward(pod(tolerations=[{"operator": "Exists"}]))["spec"]["tolerations"]
    assert {entry["key"] for entry in made} == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert all(entry["effect"] == "NoExecute" and "tolerationSeconds" not in entry for entry in made)
    assert forward(pod(tolerations=[{"operator": "Exists", "effect": "NoSchedule"}]))["spec"]["tolerations"] == []
