"""NetworkPolicies of control planes and name servers: who reaches them, and what API servers reach (pure).

A tenant's admin chooses what its API server connects to: webhooks, aggregated APIs, endpoints of Services. So the
policy admits what a control plane needs, the tenant's pods, and addresses outside the cluster.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from vkgateway.api.names import CONTROL_PLANE_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL, is_ip_address
from vkgateway.kinds.pods.translation.peer_terms import NAMESPACE_NAME_LABEL
from vkgateway.kinds.policies.translation import NODE_ADDRESSES
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, PORT, component_labels, pod_selector

Rule = dict[str, Any]

_ETCD_PORT: Final = 2379
_DNS: Final = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
_ANY_ADDRESS: Final = ("0.0.0.0/0", "::/0")


def control_plane_policies(
    tenant: str,
    *,
    namespace: str,
    etcd: Sequence[str],
    gateway: ServerEndpoint,
    clients: Sequence[str] = (),
    blocked: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the policies of a tenant's namespace and its control plane.

    `etcd` are URLs, and `gateway` is the kubelet endpoint. Addresses in `clients`, which are no pods, may also reach
    the API server. It does not reach addresses in `blocked`.
    """
    ingress = [*_client_peers(tenant), *({"ipBlock": {"cidr": cidr}} for cidr in clients)]
    spec = {
        "podSelector": {"matchLabels": pod_selector(tenant, CONTROL_PLANE)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": ingress, "ports": [{"protocol": "TCP", "port": PORT}]}],
        "egress": [
            {"to": [_namespaces(TENANT_LABEL, tenant), _namespaces(NAMESPACE_NAME_LABEL, SYSTEM_NAMESPACE)]},
            # Any server of names: its address and its namespace differ by cluster.
            {"ports": _DNS},
            *_server_rules([*map(_url_endpoint, etcd), gateway]),
            {"to": list(_outside_blocks(blocked))},
        ],
    }
    closed = {"podSelector": {}, "policyTypes": ["Ingress"]}
    return [
        _policy(tenant, "default-deny", component=CONTROL_PLANE, namespace=namespace, spec=closed),
        _policy(tenant, CONTROL_PLANE, component=CONTROL_PLANE, namespace=namespace, spec=spec),
    ]


def name_server_policy(
    tenant: str, name: str, *, namespace: str, port: int, is_outside: bool = False
) -> dict[str, Any]:
    """Return the policy of a name server: the tenant's pods may query it.

    With `is_outside`, they are in another cluster. The name server itself refuses other addresses.
    """
    peers = (
        [{"ipBlock": {"cidr": cidr}} for cidr in _ANY_ADDRESS] if is_outside else [_namespaces(TENANT_LABEL, tenant)]
    )
    spec = {
        "podSelector": {"matchLabels": pod_selector(tenant, name)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": peers,
                "ports": [{"protocol": protocol, "port": port} for protocol in ("UDP", "TCP")],
            }
        ],
    }
    return _policy(tenant, name, component=name, namespace=namespace, spec=spec)


def _client_peers(tenant: str) -> list[Rule]:
    """Return the pods that may reach an API server: the tenant's, its name servers, and those of no tenant."""
    foreign = [{"key": label, "operator": "DoesNotExist"} for label in (TENANT_LABEL, CONTROL_PLANE_LABEL)]
    return [
        _namespaces(TENANT_LABEL, tenant),
        {"podSelector": {}},
        {"namespaceSelector": {"matchExpressions": foreign}},
    ]


def _url_endpoint(url: str) -> ServerEndpoint:
    parts = urlsplit(url)
    return ServerEndpoint(parts.hostname or "", parts.port or _ETCD_PORT)


def _server_rules(servers: Iterable[ServerEndpoint]) -> list[Rule]:
    """Return rules for servers, each once: by address, or by the namespace in the name of a Service.

    A Service's name says nothing of the ports of its pods. A name outside the cluster needs no rule.
    """
    rules: list[Rule] = []
    for host, port in servers:
        if is_ip_address(host):
            ports = {"ports": [{"protocol": "TCP", "port": port}]} if port else {}
            rules.append({"to": [{"ipBlock": {"cidr": str(ipaddress.ip_network(host))}}], **ports})
        elif (found := _service_namespace(host)) and found != SYSTEM_NAMESPACE:
            rules.append({"to": [_namespaces(NAMESPACE_NAME_LABEL, found)]})
    return [rule for number, rule in enumerate(rules) if rule not in rules[:number]]


def _service_namespace(host: str) -> str:
    """Return the namespace in a name such as `etcd-0.etcd.NAMESPACE.svc.cluster.local`; empty for other names."""
    before, separator, after = host.partition(".svc")
    return before.rpartition(".")[2] if separator and (not after or after.startswith(".")) and "." in before else ""


def _outside_blocks(blocked: Sequence[str]) -> Iterable[Rule]:
    """Yield all addresses except blocked ones and those at which clouds answer for the node."""
    networks = [ipaddress.ip_network(cidr) for cidr in blocked]
    for cidr in map(ipaddress.ip_network, _ANY_ADDRESS):
        excepted = [*NODE_ADDRESSES[cidr.version], *(str(one) for one in networks if one.version == cidr.version)]
        yield {"ipBlock": {"cidr": str(cidr), "except": list(dict.fromkeys(excepted))}}


def _namespaces(label: str, value: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {label: value}}}


def _policy(tenant: str, name: str, *, component: str, namespace: str, spec: Rule) -> dict[str, Any]:
    labels = component_labels(tenant, component)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": spec,
    }
