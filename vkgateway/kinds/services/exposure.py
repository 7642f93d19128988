"""Services of type LoadBalancer and NodePort under the tenant's policy."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vkgateway.api.names import is_reserved
from vkgateway.api.objects import Object
from vkgateway.api.types import Exposure
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.pods.policy.plugins import is_tenant_only_key

LOAD_BALANCER: Final = "LoadBalancer"
NODE_PORT: Final = "NodePort"

_FORWARDED_FIELDS: Final = (
    "externalTrafficPolicy",
    "loadBalancerClass",
    "loadBalancerSourceRanges",
    "allocateLoadBalancerNodePorts",
)


def service_exposure(spec: Mapping[str, Any], *, tenant: TenantContext) -> Exposure | None:
    """Return the tenant's policy for a Service's type, or None if the Service is not exposed."""
    return {LOAD_BALANCER: tenant.load_balancers, NODE_PORT: tenant.node_ports}.get(spec.get("type") or "")


def exposed_fields(spec: Mapping[str, Any]) -> Object:
    """Return the fields of an exposed compute Service beyond those of a ClusterIP Service.

    External addresses and requested load balancer addresses are left out: they would route other traffic to the
    tenant's pods (CVE-2020-8554), or take the address of another tenant. The compute cluster chooses the node ports of
    a LoadBalancer.
    """
    return {"type": spec["type"]} | {key: spec[key] for key in _FORWARDED_FIELDS if spec.get(key) not in (None, [])}


def exposed_keys(entries: Mapping[str, str], *, tenant: TenantContext) -> dict[str, str]:
    """Return the labels or annotations of an exposed compute Service, which configure load balancers."""
    staying = tenant.tenant_only_prefixes
    return {
        key: value for key, value in entries.items() if not is_tenant_only_key(key, staying) and not is_reserved(key)
    }


def load_balancer_patch(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    *,
    tenant: TenantContext,
    compute_statuses: Sequence[Mapping[str, Any]],
) -> Object | None:
    """Return a merge patch for the status of a tenant's Service, or None if nothing differs.

    `helm install --wait` waits for a LoadBalancer's address. It is the address of the compute clusters' load balancers,
    or the cluster address under policy `ClusterAddress`. Under that policy, an address that a tenant's program wrote is
    kept, and a Service with a load balancer class is left to the tenant's controller.
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
    """Return an address as API servers store it. Since Kubernetes 1.30 they set its mode."""
    return {"ip": address, "ipMode": "VIP"}


def _ingress_points(status: Mapping[str, Any]) -> list[Object]:
    return (status.get("loadBalancer") or {}).get("ingress") or []
