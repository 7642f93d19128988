"""Compute NetworkPolicies: closed traffic stays closed, and nothing is opened to other tenants."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.translate.test_egress_rules import opens
from vkgateway.api.names import CONTROL_PLANE_LABEL, TENANT_LABEL, compute_namespace
from vkgateway.api.objects import Meta
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.pods.translation.node_terms import all_match
from vkgateway.kinds.policies.translation import (
    ISOLATION_POLICY,
    IsolationPolicies,
    NetworkPolicyView,
    PolicyContext,
    is_tenant_policy,
    isolation_policies,
)

TENANT = TenantContext(name="alpha", api_host="10.0.0.1", api_port=6443)
NAMESPACES = {"web": {"team": "shop"}, "db": {"team": "data"}, "ops": {}}
AROUND = PolicyContext(namespaces=NAMESPACES, pod_ranges=["10.214.0.0/24"], resolvers=[("10.213.0.2", 54)])
UNSERVED = replace(AROUND, resolvers=())
"""Context without served names, so that egress rules keep their shape."""
OWN = {"namespaceSelector": {"matchLabels": {TENANT_LABEL: "alpha"}}}
PLANE = {"namespaceSelector": {"matchLabels": {CONTROL_PLANE_LABEL: "alpha"}}}
WEB = {"matchLabels": {"app": "web"}}


EVERYWHERE = {"cidr": "0.0.0.0/0"}


def policy(name: str = "mine", *, of: Mapping[str, Any] | None = None, **spec: Any) -> NetworkPolicyView:
    kinds = [kind for kind in ("Ingress", "Egress") if kind.lower() in spec]
    metadata = Meta(name=name, namespace="web", uid=f"uid-{name}")
    return NetworkPolicyView(metadata=metadata, spec={"podSelector": of or {}, "policyTypes": kinds, **spec})


def made(*policies: NetworkPolicyView, around: PolicyContext = AROUND) -> IsolationPolicies:
    return isolation_policies(TENANT, "web", "u", policies, context=around)


def named(found: IsolationPolicies) -> dict[str, Any]:
    return {document["metadata"]["name"]: document["spec"] for document in found.documents}


def peer(*, direction: str = "ingress", around: PolicyContext = AROUND, **peer_fields: Any) -> list[Any]:
    """Return the translated rule with one peer."""
    rule = {"from" if direction == "ingress" else "to": [peer_fields]}
    spec: dict[str, Any] = {direction: [rule]}
    found = named(made(policy(**spec), around=around))["mine"][direction]
    return [one for rule in found for one in rule["from" if direction == "ingress" else "to"]]


@pytest.mark.parametrize("sizes", [(12_000,), (60, 9_000)])
def test_large_selectors_are_translated_quickly(sizes: tuple[int, ...]) -> None:
    policies = [
        policy(f"p{number}", of={"matchLabels": {f"k{number}-{key}": "v" for key in range(size)}}, ingress=[])
        for number, size in enumerate(sizes)
    ]
    began = time.thread_time()
    assert ISOLATION_POLICY in named(made(*policies))
    assert time.thread_time() - began < 2.0


def test_peers_with_too_many_namespaces_are_skipped() -> None:
    around = PolicyContext(namespaces={f"namespace-{number}": {} for number in range(2000)})
    peers = [
        {"namespaceSelector": {"matchExpressions": [{"key": f"no{number}", "operator": "DoesNotExist"}]}}
        for number in range(3000)
    ]
    began = time.thread_time()
    found = made(policy(ingress=[{"from": peers}]), around=around)
    assert time.thread_time() - began < 5.0
    assert 0 < len(named(found)["mine"]["ingress"][0]["from"]) < 100
    assert "too many namespaces" in found.skipped_rules[0][1]


def test_default_ingress_allows_only_the_tenant() -> None:
    spec = named(made())[ISOLATION_POLICY]
    assert spec["podSelector"] == {}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"from": [OWN]}, {"from": [PLANE]}]
    assert spec["egress"][0] == {"to": [OWN]}


def test_deny_all_policy_is_forwarded() -> None:
    found = named(made(policy(ingress=[])))
    assert found.keys() == {"mine", ISOLATION_POLICY}
    assert found["mine"] == {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}
    assert found[ISOLATION_POLICY]["ingress"] == [{"from": [PLANE]}]
    assert found[ISOLATION_POLICY]["egress"][0] == {"to": [OWN]}


def test_unselected_pods_stay_open_to_the_tenant() -> None:
    found = named(made(policy(of=WEB, ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "lb"}}}]}])))
    assert found[f"{ISOLATION_POLICY}-ingress-0"] == {
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [OWN]}],
    }
    assert found["mine"]["ingress"][0]["from"] == [
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["lb"]}]}}
    ]
    assert found[ISOLATION_POLICY]["ingress"] == [{"from": [PLANE]}]


def test_name_server_and_control_plane_are_always_reachable() -> None:
    found = named(made(policy(egress=[])))
    assert found[ISOLATION_POLICY]["egress"] == [
        {
            "to": [{"ipBlock": {"cidr": "10.213.0.2/32"}}],
            "ports": [{"port": 54, "protocol": "UDP"}, {"port": 54, "protocol": "TCP"}],
        },
        {"to": [PLANE]},
    ]


@pytest.mark.parametrize("policies", [[], [policy(egress=[{}])], [policy(egress=[{"to": [{"ipBlock": EVERYWHERE}]}])]])
def test_other_name_servers_are_closed(policies: list[NetworkPolicyView]) -> None:
    """Whatever the tenant's policies open, other name servers would reveal names of other tenants."""
    rules = [rule for spec in named(made(*policies)).values() for rule in spec["egress"]]
    for address in ("10.214.0.9", "10.215.0.10", "169.254.20.10"):
        assert not opens(rules, address, "UDP", 53)
        assert not opens(rules, address, "TCP", 53)
    assert opens(rules, "10.213.0.2", "UDP", 54)
    assert opens(rules, "10.215.0.10", "TCP", 443)


def test_isolation_policy_is_written_last() -> None:
    names = [document["metadata"]["name"] for document in made(policy(of=WEB, ingress=[])).documents]
    assert names == ["mine", f"{ISOLATION_POLICY}-ingress-0", ISOLATION_POLICY]


def test_allow_all_is_confined_to_the_tenant() -> None:
    ports = [{"port": "http", "protocol": "TCP"}, {"port": 8000, "endPort": 9000, "protocol": "TCP"}]
    found = named(made(policy(ingress=[{"ports": ports}, {}], egress=[{}]), around=UNSERVED))["mine"]
    assert found["ingress"] == [{"from": [OWN], "ports": ports}, {"from": [OWN]}]
    assert found["egress"][0]["to"][0] == OWN
    assert found["egress"][0]["to"][1]["ipBlock"] == {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({}, None),
        ({"matchLabels": {"team": "shop"}}, ["alpha--web"]),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, ["alpha--db", "alpha--web"]),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["shop"]}]}, ["alpha--db", "alpha--ops"]),
        ({"matchLabels": {"kubernetes.io/metadata.name": "ops"}}, ["alpha--ops"]),
        ({"matchLabels": {"kubernetes.io/metadata.name": "beta--web"}}, []),
    ],
)
def test_namespace_selectors_are_confined_to_the_tenant(selector: dict[str, Any], names: list[str] | None) -> None:
    ((found,),) = (peer(namespaceSelector=selector, podSelector=WEB),)
    assert found["podSelector"] == {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
    below = found["namespaceSelector"]
    assert below["matchLabels"] == {TENANT_LABEL: "alpha"}
    if names is None:
        assert "matchExpressions" not in below
    else:
        meant = {"operator": "In", "values": names} if names else {"operator": "DoesNotExist"}
        assert below["matchExpressions"] == [{"key": "kubernetes.io/metadata.name", **meant}]


@pytest.mark.parametrize(
    ("cidr", "excepted", "left"),
    [
        ("0.0.0.0/0", ["10.214.0.0/24"], True),
        ("10.0.0.0/8", ["10.214.0.0/24"], True),
        ("192.168.0.0/16", [], True),
        ("10.214.0.0/24", [], False),
        ("10.214.0.7/32", [], False),
        ("2001:db8::/32", [], True),
    ],
)
def test_ingress_by_pod_address_is_closed(cidr: str, excepted: list[str], left: bool) -> None:
    found = made(policy(ingress=[{"from": [{"ipBlock": {"cidr": cidr}}]}]))
    rules = named(found)["mine"]["ingress"]
    assert rules == (
        [{"from": [{"ipBlock": {"cidr": cidr} | ({"except": excepted} if excepted else {})}]}] if left else []
    )
    assert bool(found.skipped_rules) is not left


def test_ingress_by_address_is_closed_without_known_pod_ranges() -> None:
    around = PolicyContext(namespaces=NAMESPACES)
    found = made(
        policy(ingress=[{"from": [{"ipBlock": {"cidr": "192.168.0.0/16"}}, {"podSelector": {}}]}]), around=around
    )
    assert named(found)["mine"]["ingress"] == [{"from": [{"podSelector": {}}]}]
    assert "not known" in found.skipped_rules[0][1]


def test_egress_addresses_exclude_node_addresses() -> None:
    block = {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}
    (kept,) = peer(direction="egress", around=UNSERVED, ipBlock=block)
    assert kept == {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "169.254.0.0/16"]}}


@pytest.mark.parametrize(
    "cidr",
    [
        "169.254.169.254/32",
        "::ffff:169.254.169.254/128",
        "::ffff:a9fe:a9fe/128",
        "::ffff:169.254.0.0/112",
        "fd00:ec2::254/128",
        "fe80::1/128",
        "169.254.169.0254/32",
    ],
)
def test_mapped_node_addresses_are_closed(cidr: str) -> None:
    found = made(policy(egress=[{"to": [{"ipBlock": {"cidr": cidr}}]}]))
    assert named(found)["mine"]["egress"] == []
    assert found.skipped_rules


@pytest.mark.parametrize(
    ("block", "below"),
    [
        ({"cidr": "::ffff:0:0/96"}, {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}),
        (
            {"cidr": "::ffff:0:0/96", "except": ["::ffff:10.1.0.0/112"]},
            {"cidr": "0.0.0.0/0", "except": ["10.1.0.0/16", "169.254.0.0/16"]},
        ),
        ({"cidr": "10.1.2.3/8", "except": ["10.9.8.7/16"]}, {"cidr": "10.0.0.0/8", "except": ["10.9.0.0/16"]}),
        ({"cidr": "2000::/3"}, {"cidr": "2000::/3"}),
    ],
)
def test_address_blocks_are_normalized(block: dict[str, Any], below: dict[str, Any]) -> None:
    assert peer(direction="egress", around=UNSERVED, ipBlock=block) == [{"ipBlock": below}]


def test_invalid_address_block_is_skipped() -> None:
    peers = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["010.0.0.0/8"]}}, {"podSelector": WEB}]
    found = made(policy(egress=[{"to": peers}]), around=UNSERVED)
    assert len(named(found)["mine"]["egress"][0]["to"]) == 1
    assert "0.0.0.0/0" in found.skipped_rules[0][1]


def test_rule_without_peers_left_is_dropped() -> None:
    """An empty list of peers would mean all peers."""
    found = named(made(policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.214.0.7/32"}}]}])))
    assert found["mine"]["ingress"] == []


@pytest.mark.parametrize("key", [TENANT_LABEL, "volcano.sh/job-name", "kueue.x-k8s.io/queue-name"])
def test_selectors_over_renamed_labels_are_translated(key: str) -> None:
    renamed = key.replace("/", ".tenant-label.vkgateway.io/")
    chosen = {"matchLabels": {key: "x"}}
    found = named(made(policy(of=chosen, ingress=[{"from": [{"podSelector": chosen}]}])))
    wanted = {"matchExpressions": [{"key": renamed, "operator": "In", "values": ["x"]}]}
    assert found["mine"]["podSelector"] == wanted
    assert found["mine"]["ingress"][0]["from"][0]["podSelector"] == wanted


def test_reserved_policy_names_are_renamed() -> None:
    found = named(
        made(policy(ISOLATION_POLICY, ingress=[]), policy(f"{ISOLATION_POLICY}-ingress-0", of=WEB, ingress=[]))
    )
    assert found.keys() == {f"{ISOLATION_POLICY}.tenant", f"{ISOLATION_POLICY}-ingress-0.tenant", ISOLATION_POLICY}


def test_policies_carry_ownership_annotations() -> None:
    (document, *_) = made(policy(ingress=[])).documents
    assert document["metadata"] == {
        "name": "mine",
        "namespace": compute_namespace("alpha", "web"),
        "labels": {TENANT_LABEL: "alpha"},
        "annotations": {"vkgateway.io/namespace": "web", "vkgateway.io/name": "mine", "vkgateway.io/uid": "uid-mine"},
    }


# Judged as a network plug-in does, above and below, of all pods of two tenants.

_VALUES = st.sampled_from(["a", "b"])
_REQUIREMENT = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(["x", "y"]),
        st.sampled_from(["In", "NotIn"]),
        st.lists(_VALUES, min_size=1, max_size=2, unique=True),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(["x", "y", TENANT_LABEL]),
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
_SELECTOR = st.builds(lambda found: {"matchExpressions": found} if found else {}, st.lists(_REQUIREMENT, max_size=2))
_PEER = st.one_of(
    st.builds(lambda pods: {"podSelector": pods}, _SELECTOR),
    st.builds(lambda spaces: {"namespaceSelector": spaces}, _SELECTOR),
    st.builds(lambda pods, spaces: {"podSelector": pods, "namespaceSelector": spaces}, _SELECTOR, _SELECTOR),
)
_RULE = st.builds(lambda peers: {"from": peers} if peers else {}, st.lists(_PEER, max_size=2))
_POLICIES = st.lists(st.tuples(_SELECTOR, st.lists(_RULE, max_size=2)), max_size=4)
_LABELS = [{}, {"x": "a"}, {"x": "b"}, {"y": "a"}, {"x": "a", "y": "b"}, {"x": "b", "y": "b"}]
_SPACES = {"web": {"x": "a"}, "db": {"y": "b"}}


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    exact = [{"key": k, "operator": "In", "values": [v]} for k, v in (selector.get("matchLabels") or {}).items()]
    return all_match(labels, [*exact, *(selector.get("matchExpressions") or ())])


def _lets_in(
    policies: Sequence[Mapping[str, Any]],
    to: Mapping[str, str],
    peer: Mapping[str, str],
    space: Mapping[str, str],
    same: bool,
) -> bool:
    """Return whether policies allow ingress (networking/v1)."""
    chosen = [spec for spec in policies if "Ingress" in spec["policyTypes"] and _matches(spec["podSelector"], to)]
    if not chosen:
        return True
    for spec in chosen:
        for rule in spec.get("ingress") or ():
            if not rule.get("from"):
                return True
            for one in rule["from"]:
                fits = _matches(one["namespaceSelector"], space) if "namespaceSelector" in one else same
                if fits and _matches(one.get("podSelector") or {}, peer):
                    return True
    return False


@given(_POLICIES)
def test_compute_policies_allow_the_same_pods_as_tenant_policies(tenant_policies: list[Any]) -> None:
    views = [policy(f"p{number}", of=of, ingress=rules) for number, (of, rules) in enumerate(tenant_policies)]
    below = [document["spec"] for document in made(*views, around=PolicyContext(namespaces=_SPACES)).documents]
    above = [view.spec for view in views]
    for to in _LABELS:
        mine = to | {TENANT_LABEL: "alpha"}
        for labels in _LABELS:
            for name, space in _SPACES.items():
                compute = {TENANT_LABEL: "alpha", "kubernetes.io/metadata.name": f"alpha--{name}"}
                wanted = _lets_in(above, to, labels, space, name == "web")
                got = _lets_in(below, mine, labels | {TENANT_LABEL: "alpha"}, compute, name == "web")
                assert got == wanted
            theirs = {TENANT_LABEL: "beta", "kubernetes.io/metadata.name": "beta--web"}
            assert not _lets_in(below, mine, labels | {TENANT_LABEL: "beta"}, theirs, False)


def test_renamed_policies_stay_unique_and_within_the_name_limit() -> None:
    long = f"{ISOLATION_POLICY}-".ljust(253, "x")
    found = made(*(policy(name, ingress=[]) for name in (f"{ISOLATION_POLICY}-a", long, f"{long[:-1]}y")))
    theirs = [document for document in found.documents if is_tenant_policy(document)]
    names = [document["metadata"]["name"] for document in theirs]
    assert len(set(names)) == 3
    assert names[0] == f"{ISOLATION_POLICY}-a.tenant"
    assert all(len(name) <= 253 for name in names)
    assert [document["metadata"]["name"] for document in found.documents if not is_tenant_policy(document)] == [
        ISOLATION_POLICY
    ]
