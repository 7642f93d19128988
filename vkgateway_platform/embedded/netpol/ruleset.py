"""The kernel's rules that isolate tenants and enforce NetworkPolicies, as text for nft(8). Pure.

A packet passes the chain of the sending pod, then the chain of the receiving pod. Pods with the same policies share a
chain. Destinations are those after kube-proxy has chosen an endpoint, as NetworkPolicies require.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from vkgateway.api.names import CONTROL_PLANE_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.kinds.policies.translation import Direction, NetworkPolicyView
from vkgateway_platform.embedded.netpol.cluster_state import ClusterState, Pod, Server, Site
from vkgateway_platform.embedded.netpol.peers import PolicyRule, nft_set, selector_matches

TABLE = "vkgateway"

_COMPONENT_LABEL = "app.kubernetes.io/component"
_GATEWAY = "gateway"
_KUBELET = "kubelet"
"""Name of the container port of the kubelet endpoint."""
_REJECT = "reject with icmp type admin-prohibited"


@dataclass(slots=True)
class _Chain:
    """Rules in one direction for pods of one tenant with the same policies."""

    name: str
    tenant: str
    policies: Sequence[NetworkPolicyView]
    members: list[Pod] = field(default_factory=list)


def render_ruleset(world: ClusterState, site: Site) -> str:
    """Return the table that replaces the current one."""
    ruleset = _Ruleset(world, site)
    lines = [f"table ip {TABLE} {{}}", f"delete table ip {TABLE}", f"table ip {TABLE} {{", *ruleset.table_lines(), "}"]
    return "\n".join(lines) + "\n"


class _Ruleset:
    def __init__(self, world: ClusterState, site: Site) -> None:
        self._world = world
        self._site = site
        self._policies_of: dict[str, list[NetworkPolicyView]] = {}
        for policy in sorted(world.policies, key=lambda policy: policy.metadata.key):
            self._policies_of.setdefault(policy.metadata.namespace, []).append(policy)
        self._tenants: dict[str, list[Pod]] = {}
        self._control_planes: dict[str, list[Pod]] = {}
        for pod in world.pods:
            if tenant := self._tenant_of(pod):
                self._tenants.setdefault(tenant, []).append(pod)
            if tenant := self._namespace_label(pod, CONTROL_PLANE_LABEL):
                self._control_planes.setdefault(tenant, []).append(pod)

    def table_lines(self) -> Iterator[str]:
        """Yield the lines of the table: called chains before their callers."""
        for tenant, pods in sorted(self._tenants.items()):
            yield from _chain_lines(f"egress-tenant-{tenant}", self._egress_rules(tenant, pods))
            yield from _chain_lines(f"ingress-tenant-{tenant}", self._ingress_rules(tenant, pods))
        for direction in ("Egress", "Ingress"):
            chains = self._build_chains(direction)
            for chain in chains:
                yield from _chain_lines(chain.name, self._policy_rules(direction, chain))
            yield f"map {direction.lower()} {{ type ipv4_addr : verdict"
            if chains:
                verdicts = (f"{pod.address} : jump {chain.name}" for chain in chains for pod in chain.members)
                yield f"elements = {nft_set(verdicts)}"
            yield "}"
        yield from self._pod_sets()
        yield from _chain_lines("forward", self._forward_rules())
        yield from _chain_lines("input", self._input_rules())

    def _pod_sets(self) -> Iterator[str]:
        addresses = sorted(pod.address for pod in self._world.pods)
        yield "set pods { type ipv4_addr"
        if addresses:
            yield f"elements = {nft_set(addresses)}"
        yield "}"
        yield "set themselves { type ipv4_addr . ipv4_addr"
        if addresses:
            yield f"elements = {nft_set(f'{address} . {address}' for address in addresses)}"
        yield "}"

    def _forward_rules(self) -> Iterator[str]:
        site = self._site
        yield "type filter hook forward priority filter; policy accept"
        yield "ct state established,related accept"
        yield f"iifname {site.uplink} ip saddr {nft_set(site.machine)} accept"
        yield "ip saddr . ip daddr @themselves accept"
        yield f"iifname != {site.uplink} ip saddr != @pods drop"
        yield f"ip daddr {site.pods} ip daddr != @pods drop"
        yield f"iifname != {site.uplink} ip saddr vmap @egress"
        yield "ip daddr vmap @ingress"

    def _input_rules(self) -> Iterator[str]:
        """Yield the rules for packets to the node itself; those from a pod pass its chain like any others."""
        yield "type filter hook input priority filter; policy accept"
        yield "ct state established,related accept"
        yield f"iifname {nft_set((self._site.uplink, 'lo'))} accept"
        yield "ip saddr != @pods drop"
        yield "ip saddr vmap @egress"

    def _egress_rules(self, tenant: str, pods: Sequence[Pod]) -> Iterator[str]:
        servers = [*self._site.open, *self._world.servers.get(tenant, ()), *self._kubelet_endpoints()]
        yield from _server_rules(servers)
        own = nft_set(sorted(pod.address for pod in pods))
        yield f"ip daddr {nft_set(self._site.closed)} ip daddr != {own} {_REJECT}"

    def _kubelet_endpoints(self) -> Iterator[Server]:
        """Yield the kubelet endpoints of gateways in pods: programs of tenants read nodes' metrics there."""
        for pod in self._world.pods:
            if pod.namespace == SYSTEM_NAMESPACE and pod.labels.get(_COMPONENT_LABEL) == _GATEWAY:
                yield from (Server(pod.address, port.container_port) for port in pod.ports if port.name == _KUBELET)

    def _ingress_rules(self, tenant: str, pods: Sequence[Pod]) -> Iterator[str]:
        own = nft_set(sorted(pod.address for pod in (*pods, *self._control_planes.get(tenant, ()))))
        yield f"ip saddr {self._site.all_pods} ip saddr != {own} {_REJECT}"

    def _build_chains(self, direction: Direction) -> list[_Chain]:
        found: dict[tuple[str, tuple[tuple[str, str], ...]], _Chain] = {}
        for pod in sorted(self._world.pods, key=lambda pod: pod.address):
            policies = self._selecting_policies(direction, pod)
            tenant = self._tenant_of(pod)
            if policies or tenant:
                key = (tenant, tuple(policy.metadata.key for policy in policies))
                name = f"{direction.lower()}-{len(found)}"
                found.setdefault(key, _Chain(name, tenant, policies)).members.append(pod)
        return list(found.values())

    def _selecting_policies(self, direction: Direction, pod: Pod) -> list[NetworkPolicyView]:
        return [
            policy
            for policy in self._policies_of.get(pod.namespace, ())
            if policy.direction_rules(direction) is not None
            and selector_matches(policy.spec.get("podSelector"), pod.labels)
        ]

    def _policy_rules(self, direction: Direction, chain: _Chain) -> Iterator[str]:
        if chain.tenant:
            yield f"jump {direction.lower()}-tenant-{chain.tenant}"
        if not chain.policies:
            return
        allowed = dict.fromkeys(
            match
            for policy in chain.policies
            for rule in policy.direction_rules(direction) or ()
            for match in PolicyRule(
                self._world, direction, rule, namespace=policy.metadata.namespace, members=chain.members
            ).packet_matches()
        )
        yield from (f"{match} return".lstrip() for match in allowed)
        if "" not in allowed:
            yield _REJECT

    def _tenant_of(self, pod: Pod) -> str:
        return self._namespace_label(pod, TENANT_LABEL)

    def _namespace_label(self, pod: Pod, label: str) -> str:
        return self._world.namespaces.get(pod.namespace, {}).get(label, "")


def _server_rules(servers: Sequence[Server]) -> Iterator[str]:
    for protocol in ("tcp", "udp"):
        pairs = sorted(f"{server.address} . {server.port}" for server in servers if server.protocol.lower() == protocol)
        if pairs:
            yield f"ip daddr . {protocol} dport {nft_set(dict.fromkeys(pairs))} return"


def _chain_lines(name: str, rules: Iterator[str]) -> Iterator[str]:
    yield f"chain {name} {{"
    yield from rules
    yield "}"
