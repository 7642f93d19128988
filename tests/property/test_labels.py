"""Labels of tenant pods: a selector matches the compute pod if and only if it matches the tenant pod."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.translate import samples
from vkgateway.api.names import NAME_ANNOTATION, TENANT_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.kinds.budgets.translation import DisruptionBudgetView, forward_budget
from vkgateway.kinds.metadata import LABEL_DOMAIN, is_tenant_label, label_to_compute
from vkgateway.kinds.pods.translation.node_terms import all_match
from vkgateway.kinds.pods.translation.pod_diff import diff_pods
from vkgateway.kinds.policies.translation import ISOLATION_POLICY, NetworkPolicyView, isolation_policies
from vkgateway.kinds.services.translation import ServiceView, forward_service

TENANT = replace(samples.TENANT, pool_keys=("queue",))
LONG = "x" * 60
KEYS = [
    "app",
    "queue",
    "example.com/app",
    "kueue.x-k8s.io/queue-name",
    "volcano.sh/job-name",
    "volcano.sh.tenant-label.vkgateway.io/job-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
    f"pod-group.scheduling.sigs.k8s.io.{LONG}.{LONG}.{LONG}.{'y' * 30}/name",
    "kubectl.kubernetes.io/last-applied-configuration",
    "vkgateway.io/tenant",
    "vkgateway.io/pool",
    "vkgateway.io.tenant-label.vkgateway.io/pool",
    "kwok.vkgateway.io/run-for",
    "topology.kubernetes.io/zone",
]
keys = st.sampled_from(KEYS)
values = st.sampled_from(["", "a", "alpha", "a100"])
labels = st.dictionaries(keys, values, max_size=5)
requirements = st.one_of(
    st.builds(
        lambda key, operator, chosen: {"key": key, "operator": operator, "values": chosen},
        keys,
        st.sampled_from(["In", "NotIn"]),
        st.lists(values, min_size=1, max_size=2, unique=True),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator}, keys, st.sampled_from(["Exists", "DoesNotExist"])
    ),
)
selectors = st.builds(
    lambda exact, wanted: {"matchLabels": exact, "matchExpressions": wanted},
    st.dictionaries(keys, values, max_size=2),
    st.lists(requirements, max_size=3),
)


def matches(selector: Object, of: Object) -> bool:
    """Evaluate a label selector as Kubernetes does."""
    exact = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selector.get("matchLabels", {}).items()
    ]
    return all_match(of, [*exact, *selector.get("matchExpressions", ())])


def below(wanted: Object, **spec: Any) -> Object:
    """Forward a pod with these labels."""
    return samples.forward(samples.pod(metadata={"labels": wanted}, **spec), tenant=TENANT)


def view(name: str) -> Meta:
    return Meta(name=name, namespace="default", uid="u-1")


@given(labels, st.dictionaries(keys, values, min_size=1, max_size=3))
def test_services(of: Object, selector: Object) -> None:
    made = forward_service(ServiceView(metadata=view("web"), spec={"selector": selector}), tenant=TENANT)
    wanted = matches({"matchLabels": selector}, of)
    assert matches({"matchLabels": made["spec"]["selector"]}, below(of)["metadata"]["labels"]) == wanted


@given(labels, selectors)
def test_network_policies(of: Object, selector: Object) -> None:
    rule = {"from": [{"podSelector": selector}]}
    policy = NetworkPolicyView(metadata=view("deny"), spec={"podSelector": selector, "ingress": [rule]})
    made = isolation_policies(TENANT, "default", "u-2", [policy]).documents
    (mine,) = [one["spec"] for one in made if one["metadata"]["annotations"][NAME_ANNOTATION] == "deny"]
    pod = below(of)["metadata"]["labels"]
    wanted = matches(selector, of)
    assert matches(mine["podSelector"], pod) == wanted
    assert matches(mine["ingress"][0]["from"][0]["podSelector"], pod) == wanted
    # Only the pods that the policy does not select are open.
    opened = [one["spec"] for one in made if one["metadata"]["name"].startswith(f"{ISOLATION_POLICY}-ingress-")]
    assert any(matches(spec["podSelector"], pod) for spec in opened) == (not wanted)


@given(labels, selectors)
def test_disruption_budgets(of: Object, selector: Object) -> None:
    made = forward_budget(DisruptionBudgetView(metadata=view("quorum"), spec={"selector": selector}), tenant=TENANT)
    assert matches(made["spec"]["selector"], below(of)["metadata"]["labels"]) == matches(selector, of)


@given(labels, selectors)
def test_pod_affinity_and_topology_spread(of: Object, selector: Object) -> None:
    term = {"topologyKey": "zone", "labelSelector": selector}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    rules = {required: [term], preferred: [{"weight": 1, "podAffinityTerm": term}]}
    made = below(
        of,
        affinity={"podAffinity": rules, "podAntiAffinity": rules},
        topologySpreadConstraints=[{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term}],
    )
    pod, spec = made["metadata"]["labels"], made["spec"]
    found = [spec["topologySpreadConstraints"][0]["labelSelector"]]
    for kind in ("podAffinity", "podAntiAffinity"):
        found.append(spec["affinity"][kind][required][0]["labelSelector"])
        found.append(spec["affinity"][kind][preferred][0]["podAffinityTerm"]["labelSelector"])
    wanted = matches(selector, of)
    assert [matches(one, pod) for one in found] == [wanted] * 5
    assert not any(matches(one, pod | {TENANT_LABEL: "beta"}) for one in found)


@given(labels, labels)
def test_changed_labels(first: Object, then: Object) -> None:
    made = below(first)
    later = samples.pod(metadata={"labels": then})
    patch = diff_pods(later, made, tenant=TENANT, pool=samples.POOL).patch or {}
    standing = made["metadata"]["labels"] | (patch.get("metadata") or {}).get("labels", {})
    left = {key: value for key, value in standing.items() if value is not None}
    assert left == below(then)["metadata"]["labels"]


@given(keys, keys)
def test_distinct_keys_stay_distinct_and_foreign(one: str, other: str) -> None:
    staying = TENANT.tenant_only_prefixes
    made, second = label_to_compute(one, staying), label_to_compute(other, staying)
    assert (made == second) == (one == other)
    assert is_tenant_label(made)
    assert made == one or made.rpartition("/")[0].endswith(LABEL_DOMAIN)
    assert len(made.rpartition("/")[0]) <= 253
