"""NetworkPolicies of compute namespaces: isolation of each tenant, and the tenant's own policies within it."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from vkgateway.api.names import (
    CONTROL_PLANE_LABEL,
    OBJECT_NAME_MAX,
    TENANT_LABEL,
    compute_metadata,
    compute_namespace,
)
from vkgateway.api.objects import Meta, Object
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.metadata import requirements_to_compute
from vkgateway.kinds.pods.translation.peer_terms import NAMESPACE_NAME_LABEL, matching_namespaces
from vkgateway.kinds.policies.egress_rules import NameServerRange, exclude_name_servers
from vkgateway.kinds.size_budget import OversizeError, SizeBudget

ISOLATION_POLICY: Final = "vkgateway-tenant"
"""Name of the policy that isolates a compute namespace. Names with this prefix are reserved for the platform."""

_TENANT_SUFFIX: Final = ".tenant"
"""Suffix of the compute names of tenant policies whose names have that prefix."""

Direction = Literal["Ingress", "Egress"]
Term = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Requirements on labels, all of which must match: key, operator, values."""

NODE_ADDRESSES: Final = {4: ("169.254.0.0/16",), 6: ("fd00:ec2::254/128", "fd20:ce::254/128", "fe80::/10")}
"""Link-local addresses, and others at which clouds (EC2, GCE) answer for the node. Tenant pods must not reach them."""
_ANY_ADDRESS: Final = (
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": [*NODE_ADDRESSES[4]]}},
    {"ipBlock": {"cidr": "::/0", "except": [*NODE_ADDRESSES[6]]}},
)
_IPV4_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
"""IPv4-mapped IPv6 addresses, which network plug-ins treat as IPv4 (Go's `IPNet.String`)."""
_DNS_RULE: Final = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
_PEER_FIELDS: Final[Mapping[Direction, str]] = {"Ingress": "from", "Egress": "to"}
_NEGATED_OPERATORS: Final = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}
_TERMS_MAX: Final = 64
"""Limit of policies for pods that no policy of the tenant selects: see `_unselected_terms`."""
_CANDIDATES_MAX: Final = 1024
"""Limit of candidate terms for these policies, because each is compared with each."""


class NetworkPolicyView(msgspec.Struct, kw_only=True):
    """NetworkPolicy with its whole spec, which is small."""

    metadata: Meta
    spec: dict[str, Any] = {}

    def direction_rules(self, direction: Direction) -> list[Object] | None:
        """Return the rules of a direction, or None if the policy does not apply to it (networking/v1 defaults)."""
        kinds = self.spec.get("policyTypes") or (["Ingress", "Egress"] if self.spec.get("egress") else ["Ingress"])
        return list(self.spec.get(direction.lower()) or ()) if direction in kinds else None


decode_policy: Final = msgspec.json.Decoder(NetworkPolicyView).decode


def selects_namespaces(policy: NetworkPolicyView) -> bool:
    """Return whether any peer of a policy selects namespaces by label."""
    rules = ((rule, side) for way, side in _PEER_FIELDS.items() for rule in policy.spec.get(way.lower()) or ())
    return any(
        any((peer.get("namespaceSelector") or {}).values()) for rule, side in rules for peer in rule.get(side) or ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """Facts outside the policies that they depend on.

    `namespaces` are the labels of the tenant's namespaces by name. `pod_ranges` are the pod ranges of the compute
    cluster, empty if unknown. `resolvers` are address and port of the tenant's name servers, empty if names are not
    served. `name_servers` is the address range of the name servers of all tenants.
    """

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pod_ranges: Sequence[str] = ()
    resolvers: Sequence[tuple[str, int]] = ()
    name_servers: NameServerRange | None = None


@dataclass(slots=True)
class IsolationPolicies:
    """Policies of one compute namespace in the order of writing, and the tenant's rules that are left out.

    In this order, traffic that is allowed at the end is never blocked in between.
    """

    documents: list[Object] = field(default_factory=list)
    skipped_rules: list[tuple[NetworkPolicyView, str]] = field(default_factory=list)


def isolation_policies(
    tenant: TenantContext,
    namespace: str,
    uid: str,
    policies: Iterable[NetworkPolicyView] = (),
    *,
    context: PolicyContext | None = None,
) -> IsolationPolicies:
    """Return the policies of the compute namespace of a tenant's namespace with UID `uid`.

    Policies only add to what is allowed, so the isolation policy must not allow what a tenant's policy closes. In a
    direction for which the tenant has policies, the isolation policies open only pods that none of them selects, as
    Kubernetes does.
    """
    made = _PolicyBuilder(tenant, namespace, uid, context or PolicyContext())
    for policy in sorted(policies, key=lambda one: one.metadata.name):
        made.add_policy(policy)
    made.add_isolation()
    return made.result


def is_tenant_policy(document: Object) -> bool:
    """Return whether an object of a compute namespace is the copy of one of the tenant's policies."""
    name: str = document["metadata"]["name"]
    return document["kind"] == "NetworkPolicy" and (
        not name.startswith(ISOLATION_POLICY) or name.endswith(_TENANT_SUFFIX)
    )


def _compute_policy_name(name: str) -> str:
    if not name.startswith(ISOLATION_POLICY):
        return name
    if len(name) + len(_TENANT_SUFFIX) > OBJECT_NAME_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:10]
        name = f"{ISOLATION_POLICY}-{digest}"
    return f"{name}{_TENANT_SUFFIX}"


class _PolicyBuilder:
    def __init__(self, tenant: TenantContext, namespace: str, uid: str, context: PolicyContext) -> None:
        self._tenant = tenant
        self._namespace = namespace
        self._uid = uid
        self._context = context
        self._tenant_peer = {"namespaceSelector": {"matchLabels": {TENANT_LABEL: tenant.name}}}
        # Pods of the tenant's control plane, if it runs in this cluster. The API server calls webhooks in pods, and
        # pods call the API server and name servers. No policy of the tenant can name them.
        self._control_plane_peer = {"namespaceSelector": {"matchLabels": {CONTROL_PLANE_LABEL: tenant.name}}}
        self._selected_terms: dict[Direction, list[Term]] = {"Ingress": [], "Egress": []}
        self._size_budget = SizeBudget()
        self.result = IsolationPolicies()

    def add_policy(self, policy: NetworkPolicyView) -> None:
        """Add the copy of a tenant's policy."""
        term = self._selector_term(policy.spec.get("podSelector"))
        spec: Object = {"podSelector": _term_selector(term), "policyTypes": []}
        for direction in _PEER_FIELDS:
            rules = policy.direction_rules(direction)
            if rules is not None:
                self._selected_terms[direction].append(term)
                spec["policyTypes"].append(direction)
                made = [one for rule in rules if (one := self._forward_rule(policy, direction, rule))]
                if direction == "Egress":
                    made = [part for one in made for part in self._confine_dns(one)]
                spec[direction.lower()] = made
        name = policy.metadata.name
        self._append_policy(_compute_policy_name(name), spec, source=name, uid=policy.metadata.uid)

    def add_isolation(self) -> None:
        """Add the isolation policies, after all tenant policies."""
        spec: Object = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        for direction in _PEER_FIELDS:
            selected = self._selected_terms[direction]
            for number, term in enumerate(_unselected_terms(selected)):
                opened = {
                    "podSelector": _term_selector(term),
                    "policyTypes": [direction],
                    direction.lower(): self._default_rules(direction),
                }
                self._append_policy(
                    f"{ISOLATION_POLICY}-{direction.lower()}-{number}", opened, source=self._namespace, uid=self._uid
                )
            opened_rules = self._resolver_rules(direction) if selected else self._default_rules(direction)
            spec[direction.lower()] = [*opened_rules, {_PEER_FIELDS[direction]: [self._control_plane_peer]}]
        self._append_policy(ISOLATION_POLICY, spec, source=self._namespace, uid=self._uid)

    def _default_rules(self, direction: Direction) -> list[Object]:
        """Return the rules for pods without a policy of the tenant.

        Ingress is open to the tenant's pods only. Egress is open to those, to the tenant's name server, and to all
        other addresses except link-local ones and other tenants' name servers. The ingress policy of another tenant's
        namespace blocks traffic to its pods.
        """
        if direction == "Ingress":
            return [{"from": [self._tenant_peer]}]
        names = self._resolver_rules(direction) if self._context.resolvers else [_DNS_RULE]
        return [{"to": [self._tenant_peer]}, *names, *self._confine_dns({"to": list(_ANY_ADDRESS)})]

    def _confine_dns(self, rule: Object) -> list[Object]:
        """Return an egress rule without other tenants' name servers.

        Pods without served names query their node's server.
        """
        if not self._context.resolvers:
            return [rule]
        return exclude_name_servers(
            rule, pod_ranges=tuple(self._context.pod_ranges), servers=self._context.name_servers
        )

    def _resolver_rules(self, direction: Direction) -> list[Object]:
        """Return the rules that open the tenant's name servers.

        They are not pods, so no policy of the tenant can name them.
        """
        if direction == "Ingress":
            return []
        return [
            {
                "to": [{"ipBlock": {"cidr": str(ipaddress.ip_network(address))}}],
                "ports": [{"port": port, "protocol": protocol} for protocol in ("UDP", "TCP")],
            }
            for address, port in self._context.resolvers
        ]

    def _forward_rule(self, policy: NetworkPolicyView, direction: Direction, rule: Object) -> Object | None:
        ports = {"ports": rule["ports"]} if rule.get("ports") else {}
        peers = rule.get(_PEER_FIELDS[direction]) or ()
        if not peers:
            everybody = [self._tenant_peer] if direction == "Ingress" else [self._tenant_peer, *_ANY_ADDRESS]
            return {_PEER_FIELDS[direction]: everybody, **ports}
        made = [one for peer in peers if (one := self._forward_peer(policy, direction, peer))]
        return {_PEER_FIELDS[direction]: made, **ports} if made else None

    def _forward_peer(self, policy: NetworkPolicyView, direction: Direction, peer: Object) -> Object | None:
        """Return a peer confined to this tenant, or None if nothing of it is allowed."""
        try:
            return self._confine_peer(policy, direction, peer)
        except OversizeError:
            self._skip_rule(policy, "the policies of this namespace select too many namespaces and addresses")
            return None

    def _confine_peer(self, policy: NetworkPolicyView, direction: Direction, peer: Object) -> Object | None:
        if peer.get("ipBlock"):
            return self._forward_block(policy, direction, peer["ipBlock"])
        made: Object = {}
        if peer.get("podSelector") is not None:
            made["podSelector"] = _term_selector(self._selector_term(peer["podSelector"]))
        if peer.get("namespaceSelector") is not None:
            made["namespaceSelector"] = self._forward_namespace_selector(peer["namespaceSelector"])
        return made

    def _forward_namespace_selector(self, selector: Mapping[str, Any]) -> Object:
        """Return a selector for the names of the matching namespaces, since compute namespaces lack the tenant's
        labels.
        """
        made: Object = {"matchLabels": {TENANT_LABEL: self._tenant.name}}
        if selector.get("matchLabels") or selector.get("matchExpressions"):
            meant = matching_namespaces(
                list(_selector_requirements(selector)), self._context.namespaces, self._size_budget
            )
            names = sorted(compute_namespace(self._tenant.name, name) for name in meant)
            self._size_budget.charge_size(sum(map(len, names)))
            required = {"operator": "In", "values": names} if names else {"operator": "DoesNotExist"}
            made["matchExpressions"] = [{"key": NAMESPACE_NAME_LABEL, **required}]
        return made

    def _forward_block(self, policy: NetworkPolicyView, direction: Direction, block: Object) -> Object | None:
        """Return an address block without other tenants' pods and without node addresses.

        Egress to other tenants' pods is blocked at those pods, so only ingress from them must be blocked here.
        """
        try:
            cidr = _parse_network(block["cidr"])
            excepted = [str(_parse_network(one)) for one in block.get("except") or ()]
        except ValueError:
            self._skip_rule(policy, f"ipBlock {block['cidr']}: is not a valid address block")
            return None
        apart = self._context.pod_ranges if direction == "Ingress" else NODE_ADDRESSES[cidr.version]
        if direction == "Egress":
            self._size_budget.charge_size(lookups=len(self._context.pod_ranges))
        if direction == "Ingress" and not apart:
            self._skip_rule(
                policy,
                f"ipBlock {cidr}: the pod ranges of the compute cluster are not known",
            )
            return None
        self._size_budget.charge_size(lookups=len(apart))
        for one in map(_parse_network, apart):
            if one.version != cidr.version or not one.overlaps(cidr):
                continue
            if one.prefixlen <= cidr.prefixlen:
                self._skip_rule(
                    policy,
                    f"ipBlock {cidr}: pods and nodes are not allowed by address; select pods instead",
                )
                return None
            excepted.append(str(one))
        made: Object = {"cidr": str(cidr)}
        if excepted:
            made["except"] = list(dict.fromkeys(excepted))
        return {"ipBlock": made}

    def _selector_term(self, selector: Mapping[str, Any] | None) -> Term:
        """Return a label selector over pods as requirements, translated as pod labels are."""
        wanted = requirements_to_compute(_selector_requirements(selector or {}), self._tenant.tenant_only_prefixes)
        made = ((entry["key"], entry["operator"], tuple(sorted(entry.get("values") or ()))) for entry in wanted)
        return tuple(dict.fromkeys(made))

    def _skip_rule(self, policy: NetworkPolicyView, reason: str) -> None:
        self.result.skipped_rules.append((policy, reason))

    def _append_policy(self, name: str, spec: Object, *, source: str, uid: str) -> None:
        metadata = compute_metadata(self._tenant.name, self._namespace, source, uid) | {"name": name}
        document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
        self.result.documents.append(document)


@lru_cache(maxsize=8192)
def _parse_network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return an address block.

    Kubernetes before 1.36 accepts host bits in it.

    Raises:
        ValueError: the text is not an address block.
    """
    found = ipaddress.ip_network(cidr, strict=False)
    if isinstance(found, ipaddress.IPv4Network) or not found.subnet_of(_IPV4_MAPPED):
        return found
    address = int(found.network_address) - int(_IPV4_MAPPED.network_address)
    return ipaddress.IPv4Network((address, found.prefixlen - _IPV4_MAPPED.prefixlen))


def _unselected_terms(selected: Sequence[Term]) -> list[Term]:
    """Return terms for the pods that none of the given terms selects, empty if every pod is selected.

    A term does not select a pod if one of its requirements fails. So each way to negate one requirement of each term
    gives an alternative. If there are too many alternatives, the pods stay isolated under the tenant's policies.
    """
    terms: set[frozenset[tuple[str, str, tuple[str, ...]]]] = {frozenset()}
    if not selected:
        return []
    for one in selected:
        if len(terms) * len(one) > _CANDIDATES_MAX:
            return []
        terms = {
            term | {(key, _NEGATED_OPERATORS[operator], values)} for term in terms for key, operator, values in one
        }
        terms = {term for term in terms if not any(other < term for other in terms)}
        if len(terms) > _TERMS_MAX:
            return []
    return sorted(tuple(sorted(term)) for term in terms)


def _selector_requirements(selector: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield {"key": key, "operator": "In", "values": [value]}
    yield from selector.get("matchExpressions") or ()


def _term_selector(term: Term) -> Object:
    if not term:
        return {}
    return {
        "matchExpressions": [
            {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
            for key, operator, values in term
        ]
    }
