"""Services of type LoadBalancer and NodePort: what the tenant's policy makes of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vkgateway.model.api import Exposure
from vkgateway.model.names import is_reserved
from vkgateway.model.objects import Object
from vkgateway.translate.context import TenantContext

LOAD_BALANCER: Final = "LoadBalancer"
NODE_PORT: Final = "NodePort"

_FORWARDED_FIELDS: Final = (
    "externalTrafficPolicy",
    "loadBalancerClass",
    "loadBalancerSourceRanges",
    "allocateLoadBalancerNodePorts",
)


def service_exposure(spec: Mapping[str, Any], *, tenant: TenantContext) -> Exposure | None:
    """Return what the tenant's policy makes of a Service; None where the Service is not exposed at all."""
    return {LOAD_BALANCER: tenant.load_balancers, NODE_PORT: tenant.node_ports}.get(spec.get("type") or "")


def exposed_fields(spec: Mapping[str, Any]) -> Object:
    """Return what a forwarded Service of these types has besides that of a cluster address.

    Not its external addresses, nor an address that it asks for: these lead traffic of others to the tenant's pods
    (CVE-2020-8554), or to an address that another tenant has. Of a LoadBalancer, the compute cluster chooses the node
    ports.
    """
    return {"type": spec["type"]} | {key: spec[key] for key in _FORWARDED_FIELDS if spec.get(key) not in (None, [])}


def exposed_keys(entries: Mapping[str, str], *, tenant: TenantContext) -> dict[str, str]:
    """Return the labels or annotations of a forwarded Service: load balancers are set up by them."""
    staying = tenant.tenant_only_prefixes
    return {key: value for key, value in entries.items() if not key.startswith(staying) and not is_reserved(key)}


def load_balancer_patch(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    *,
    tenant: TenantContext,
    compute_statuses: Sequence[Mapping[str, Any]],
) -> Object | None:
    """Return a merge patch for the status of a tenant's Service, or None if nothing differs.

    `helm install --wait` waits for a LoadBalancer's address. It is that of the compute clusters' load balancers, or the
    cluster address; another one, which a program of the tenant's has written, stays. A class of load balancers that is
    not forwarded has a controller in the tenant.
    """
    if spec.get("type") != LOAD_BALANCER or tenant.load_balancers == "Refuse":
        return None
    told = _ingress_points(status)
    wanted = below = [entry for found in compute_statuses for entry in _ingress_points(found)]
    if tenant.load_balancers == "ClusterAddress":
        if spec.get("loadBalancerClass") or told not in ([], below):
            return None
        wanted = [_vip_address(address) for address in spec.get("clusterIPs") or [spec["clusterIP"]]]
    return None if told == wanted else {"status": {"loadBalancer": {"ingress": wanted}}}


def _vip_address(address: str) -> Object:
    """Return an address as API servers store it, which set its mode since Kubernetes 1.30."""
    return {"ip": address, "ipMode": "VIP"}


def _ingress_points(status: Mapping[str, Any]) -> list[Object]:
    return (status.get("loadBalancer") or {}).get("ingress") or []
