"""NetworkPolicies below: the fence around each tenant, and inside it what the tenant's own policies say."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from vkgateway.model.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    OBJECT_NAME_MAX,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.model.objects import Meta, Object
from vkgateway.translate.context import TenantContext
from vkgateway.translate.egress_rules import NameServerRange, exclude_name_servers
from vkgateway.translate.labels import requirements_to_compute
from vkgateway.translate.peer_terms import NAMESPACE_NAME_LABEL, matching_namespaces
from vkgateway.translate.size_budget import OversizeError, SizeBudget

ISOLATION_POLICY: Final = "vkgateway-tenant"
"""Name of the policy that closes a compute namespace off; names that start so are the platform's own."""

_TENANT_SUFFIX: Final = ".tenant"
"""How names of tenants' policies end below that begin like those."""

Direction = Literal["Ingress", "Egress"]
Term = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Requirements on labels, all of which must hold: key, operator, values."""

_NODE_ADDRESSES: Final = {4: ("169.254.0.0/16",), 6: ("fd00:ec2::254/128", "fd20:ce::254/128", "fe80::/10")}
"""Link-local addresses, and others where clouds (EC2, GCE) answer for the node itself: nothing for a tenant's pod."""
_ANY_ADDRESS: Final = (
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": [*_NODE_ADDRESSES[4]]}},
    {"ipBlock": {"cidr": "::/0", "except": [*_NODE_ADDRESSES[6]]}},
)
_IPV4_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
"""IPv4 addresses in the writing of IPv6: network plug-ins take them for what they are (Go's `IPNet.String`)."""
_DNS_RULE: Final = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
_PEER_FIELDS: Final[Mapping[Direction, str]] = {"Ingress": "from", "Egress": "to"}
_NEGATED_OPERATORS: Final = {"In": "NotIn", "NotIn": "In", "Exists": "DoesNotExist", "DoesNotExist": "Exists"}
_TERMS_MAX: Final = 64
"""Policies by which pods that no policy of the tenant selects stay open; see `_unselected_terms`."""
_CANDIDATES_MAX: Final = 1024
"""Alternatives among which those are looked for: each is compared with each."""


class NetworkPolicyView(msgspec.Struct, kw_only=True):
    """A NetworkPolicy. Its spec is small, and kept whole."""

    metadata: Meta
    spec: dict[str, Any] = {}

    def direction_rules(self, direction: Direction) -> list[Object] | None:
        """Its rules in a direction; None where it says nothing of that (networking/v1 defaults)."""
        kinds = self.spec.get("policyTypes") or (["Ingress", "Egress"] if self.spec.get("egress") else ["Ingress"])
        return list(self.spec.get(direction.lower()) or ()) if direction in kinds else None


decode_policy: Final = msgspec.json.Decoder(NetworkPolicyView).decode


def selects_namespaces(policy: NetworkPolicyView) -> bool:
    """Whether some peer of a policy is namespaces by their labels."""
    rules = ((rule, side) for way, side in _PEER_FIELDS.items() for rule in policy.spec.get(way.lower()) or ())
    return any(
        any((peer.get("namespaceSelector") or {}).values()) for rule, side in rules for peer in rule.get(side) or ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """What policies depend on beside themselves: the labels of the tenant's namespaces by name, the ranges of pods in
    the compute cluster (none: not known), who answers for names, as address and port (none: names are not served),
    and where the name servers of all tenants listen.
    """

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pod_ranges: Sequence[str] = ()
    resolvers: Sequence[tuple[str, int]] = ()
    name_servers: NameServerRange | None = None


@dataclass(slots=True)
class IsolationPolicies:
    """What stands below for one namespace: the policies in the order of writing, and what of the tenant's cannot.

    The order is such that nothing is cut off on the way that is open in the end.
    """

    documents: list[Object] = field(default_factory=list)
    skipped_rules: list[tuple[NetworkPolicyView, str]] = field(default_factory=list)


def isolation_policies(
    tenant: TenantContext,
    namespace: str,
    uid: str,
    policies: Iterable[NetworkPolicyView] = (),
    *,
    around: PolicyContext | None = None,
) -> IsolationPolicies:
    """The policies of the compute namespace that stands for a tenant's namespace, whose UID is `uid`.

    Policies only ever add to what is allowed, so what a tenant closes must not be opened by the fence: in a direction
    for which the tenant has policies the fence opens those pods alone that none of them selects, as Kubernetes has it.
    """
    made = _PolicyBuilder(tenant, namespace, uid, around or PolicyContext())
    for policy in sorted(policies, key=lambda one: one.metadata.name):
        made.add_policy(policy)
    made.add_isolation()
    return made.result


def is_tenant_policy(document: Object) -> bool:
    """Whether an object for a compute namespace is a policy that stands for one of the tenant's own."""
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
    def __init__(self, tenant: TenantContext, namespace: str, uid: str, around: PolicyContext) -> None:
        self._tenant = tenant
        self._namespace = namespace
        self._uid = uid
        self._context = around
        self._tenant_peer = {"namespaceSelector": {"matchLabels": {TENANT_LABEL: tenant.name}}}
        self._selected_terms: dict[Direction, list[Term]] = {"Ingress": [], "Egress": []}
        self._size_budget = SizeBudget()
        self.result = IsolationPolicies()

    def add_policy(self, policy: NetworkPolicyView) -> None:
        """Take a policy of the tenant in."""
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
        """Add the fence itself, last."""
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
            spec[direction.lower()] = self._resolver_rules(direction) if selected else self._default_rules(direction)
        self._append_policy(ISOLATION_POLICY, spec, source=self._namespace, uid=self._uid)

    def _default_rules(self, direction: Direction) -> list[Object]:
        """Nothing enters but from the tenant's own pods. Pods reach those, their name server, and what no rule closes.

        Link-local addresses are closed, and name servers of others. What leaves for another tenant's pods is stopped
        there, by the fence of that tenant's namespace.
        """
        if direction == "Ingress":
            return [{"from": [self._tenant_peer]}]
        names = self._resolver_rules(direction) if self._context.resolvers else [_DNS_RULE]
        return [{"to": [self._tenant_peer]}, *names, *self._confine_dns({"to": list(_ANY_ADDRESS)})]

    def _confine_dns(self, rule: Object) -> list[Object]:
        """Return an egress rule without name servers of others; pods whose names are not served ask their node's."""
        if not self._context.resolvers:
            return [rule]
        return exclude_name_servers(
            rule, pod_ranges=tuple(self._context.pod_ranges), servers=self._context.name_servers
        )

    def _resolver_rules(self, direction: Direction) -> list[Object]:
        """What is open whatever the tenant's policies say: who answers for names is no pod that they could name."""
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
        """A peer confined to this tenant; None where nothing of it may stand."""
        try:
            return self._confine_peer(policy, direction, peer)
        except OversizeError:
            self._skip_rule(policy, "the policies of this namespace mean too many namespaces and addresses")
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
        """Compute namespaces carry none of the tenant's labels: those that it means now, by name."""
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
        """A block of addresses without those of other people's pods, or of the node itself.

        What leaves for other tenants' pods is stopped at theirs; what enters from them must be stopped here.
        """
        try:
            cidr = _parse_network(block["cidr"])
            excepted = [str(_parse_network(one)) for one in block.get("except") or ()]
        except ValueError:
            self._skip_rule(policy, f"ipBlock {block['cidr']}: it is not clear which addresses that means")
            return None
        apart = self._context.pod_ranges if direction == "Ingress" else _NODE_ADDRESSES[cidr.version]
        if direction == "Egress":
            self._size_budget.charge_size(looks=len(self._context.pod_ranges))
        if direction == "Ingress" and not apart:
            self._skip_rule(policy, f"ipBlock {cidr}: the addresses of other tenants' pods are not known")
            return None
        self._size_budget.charge_size(looks=len(apart))
        for one in map(_parse_network, apart):
            if one.version != cidr.version or not one.overlaps(cidr):
                continue
            if one.prefixlen <= cidr.prefixlen:
                self._skip_rule(policy, f"ipBlock {cidr}: these addresses are not opened; select pods instead")
                return None
            excepted.append(str(one))
        made: Object = {"cidr": str(cidr)}
        if excepted:
            made["except"] = list(dict.fromkeys(excepted))
        return {"ipBlock": made}

    def _selector_term(self, selector: Mapping[str, Any] | None) -> Term:
        """Return a label selector over pods as requirements, translated as the labels of pods are."""
        wanted = requirements_to_compute(_selector_requirements(selector or {}), self._tenant.tenant_only_prefixes)
        made = ((entry["key"], entry["operator"], tuple(sorted(entry.get("values") or ()))) for entry in wanted)
        return tuple(dict.fromkeys(made))

    def _skip_rule(self, policy: NetworkPolicyView, why: str) -> None:
        self.result.skipped_rules.append((policy, why))

    def _append_policy(self, name: str, spec: Object, *, source: str, uid: str) -> None:
        annotations = {NAMESPACE_ANNOTATION: self._namespace, NAME_ANNOTATION: source, UID_ANNOTATION: uid}
        metadata = {
            "name": name,
            "namespace": compute_namespace(self._tenant.name, self._namespace),
            "labels": {TENANT_LABEL: self._tenant.name},
            "annotations": annotations,
        }
        document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}
        self.result.documents.append(document)


@lru_cache(maxsize=8192)
def _parse_network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A block of addresses; Kubernetes before 1.36 takes them with bits beyond the prefix. Raises ValueError."""
    found = ipaddress.ip_network(cidr, strict=False)
    if isinstance(found, ipaddress.IPv4Network) or not found.subnet_of(_IPV4_MAPPED):
        return found
    address = int(found.network_address) - int(_IPV4_MAPPED.network_address)
    return ipaddress.IPv4Network((address, found.prefixlen - _IPV4_MAPPED.prefixlen))


def _unselected_terms(selected: Sequence[Term]) -> list[Term]:
    """The pods that none of some selectors chooses, as selectors of their own; none where each pod is chosen.

    A pod is not chosen by a selector where one of its requirements does not hold; so it is one alternative for each
    way to pick a requirement of each. Should these be too many, such pods are left to the tenant's policies, closed.
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
