"""Compute Services: a ClusterIP for each tenant Service that has one, exposed to the outside only by policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from vkgateway.api.names import CLUSTER_IP_ANNOTATION, FIELD_MANAGER, compute_metadata, is_reserved
from vkgateway.api.objects import Meta, Object
from vkgateway.api.types import Exposure
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.metadata import labels_to_compute
from vkgateway.kinds.pods.policy.plugins import is_tenant_only_key

API_SERVICE: Final = ("default", "kubernetes")
"""Service of the API server, which pods find by other means."""
METRICS_SERVICE: Final = ("kube-system", "vkgateway-metrics")
"""Service through which the tenant's API server reaches the gateway's metrics.k8s.io."""
DNS_SERVICE: Final = ("kube-system", "kube-dns")
"""Service of the name server."""
NAME_SERVER_ANNOTATION: Final = "vkgateway.io/name-server"
"""Annotation of a tenant's `DNS_SERVICE` that the gateway created for the platform's name server."""
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY_GATEWAY: Final = f"{FIELD_MANAGER}.io"
"""Value of `MANAGED_BY_LABEL` on EndpointSlices of the gateway. Kubernetes' controller ignores slices of others."""
MANAGED_BY_KUBERNETES: Final = "endpointslice-controller.k8s.io"
"""Value of the label on EndpointSlices that Kubernetes creates from a Service's selector."""

_KEPT_FIELDS: Final = (
    "sessionAffinity",
    "sessionAffinityConfig",
    "publishNotReadyAddresses",
    "internalTrafficPolicy",
    "trafficDistribution",
)
_KEPT_PORT_FIELDS: Final = ("name", "protocol", "appProtocol", "port", "targetPort")
_KEPT_CONDITIONS: Final = ("ready", "serving", "terminating")


class ServiceView(msgspec.Struct, kw_only=True):
    """Service with its whole spec, which is small."""

    metadata: Meta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def cluster_ip(self) -> str:
        """ClusterIP of the Service, empty if it has none."""
        address: str = self.spec.get("clusterIP") or ""
        return "" if address == "None" or self.spec.get("type") == "ExternalName" else address

    @property
    def external_exposure(self) -> list[str]:
        """Requested exposure beyond the ClusterIP: node ports, load balancers, external addresses."""
        kind = self.spec.get("type")
        exposure = [f"type {kind}"] if kind in (NODE_PORT, LOAD_BALANCER) else []
        return exposure + (["externalIPs"] if self.spec.get("externalIPs") else [])

    def unforwarded_exposure(self, *, tenant: TenantContext) -> list[str]:
        """Return the requested exposure that the compute cluster does not provide for the tenant."""
        return [
            exposure
            for exposure in self.external_exposure
            if exposure == "externalIPs" or not is_forwarded(self, tenant=tenant)
        ]


class SliceView(msgspec.Struct, kw_only=True, rename="camel"):
    """EndpointSlice, whole except for parts of its metadata."""

    metadata: Meta
    address_type: str = ""
    endpoints: list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None

    @property
    def service_name(self) -> str:
        """Name of the Service that the slice belongs to, or ""."""
        return self.metadata.labels.get(SERVICE_NAME_LABEL, "")

    @property
    def managed_by(self) -> str:
        """Controller that writes the slice."""
        return self.metadata.labels.get(MANAGED_BY_LABEL, "")


def is_platform_service(view: ServiceView) -> bool:
    """Return whether a tenant's Service leads to the platform, which provides its own compute Services for it."""
    key = view.metadata.key
    return key in (API_SERVICE, METRICS_SERVICE) or (
        key == DNS_SERVICE and NAME_SERVER_ANNOTATION in view.metadata.annotations
    )


decode_service: Final = msgspec.json.Decoder(ServiceView).decode
decode_slice: Final = msgspec.json.Decoder(SliceView).decode


def service_spec(spec: Object) -> Object:
    """Return the compared parts of a Service's spec: selector, ports, and the choice of backends.

    Type, node ports, load balancers and external addresses are left out: they would open ports on nodes or route other
    traffic to the tenant's pods (CVE-2020-8554). The selector selects among the pods of one compute namespace, which
    belong to the tenant.
    """
    made: Object = {key: spec[key] for key in _KEPT_FIELDS if spec.get(key) not in (None, False)}
    made["selector"] = dict(spec.get("selector") or {})
    made["ports"] = [
        {key: port[key] for key in _KEPT_PORT_FIELDS if port.get(key) not in (None, "")}
        for port in spec.get("ports") or ()
    ]
    return made


def is_forwarded(source: ServiceView, *, tenant: TenantContext) -> bool:
    """Return whether a Service is exposed by the compute cluster, too."""
    return service_exposure(source.spec, tenant=tenant) == "Forward"


def exposed_spec(spec: Object) -> Object:
    """Return the parts of `service_spec`, and those that expose the Service."""
    made = service_spec(spec) | exposed_fields(spec)
    if spec["type"] == NODE_PORT:
        numbers = [port.get("nodePort") for port in spec.get("ports") or ()]
        made["ports"] = [
            port | ({"nodePort": number} if number else {}) for port, number in zip(made["ports"], numbers, strict=True)
        ]
    return made


def forward_spec(source: ServiceView, *, tenant: TenantContext) -> Object:
    """Return the spec of the compute Service, with its selector translated."""
    spec = exposed_spec(source.spec) if is_forwarded(source, tenant=tenant) else service_spec(source.spec)
    return spec | {"selector": labels_to_compute(spec["selector"], tenant.tenant_only_prefixes)}


def is_service_current(source: ServiceView, compute_service: ServiceView, *, tenant: TenantContext) -> bool:
    """Return whether a compute Service matches `forward_service`, except for its address."""
    if not is_forwarded(source, tenant=tenant):
        return not compute_service.external_exposure and service_spec(compute_service.spec) == forward_spec(
            source, tenant=tenant
        )
    wanted = forward_service(source, tenant=tenant)["metadata"]
    return (
        compute_service.spec.get("type") == source.spec["type"]
        and exposed_spec(compute_service.spec) == forward_spec(source, tenant=tenant)
        and wanted["labels"].items() <= compute_service.metadata.labels.items()
        and wanted["annotations"].items() <= compute_service.metadata.annotations.items()
    )


def forward_service(source: ServiceView, *, tenant: TenantContext) -> Object:
    """Return the compute Service of a tenant's Service with a ClusterIP. The server assigns its address."""
    spec = forward_spec(source, tenant=tenant)
    if not spec["selector"]:
        del spec["selector"]
    metadata = compute_metadata(tenant.name, source.metadata.namespace, source.metadata.name, source.metadata.uid)
    metadata["annotations"][CLUSTER_IP_ANNOTATION] = source.cluster_ip
    if is_forwarded(source, tenant=tenant):
        metadata["labels"] = exposed_keys(source.metadata.labels, tenant=tenant) | metadata["labels"]
        metadata["annotations"] = exposed_keys(source.metadata.annotations, tenant=tenant) | metadata["annotations"]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "ClusterIP", **spec}}


def slice_content(source: SliceView, *, pod_addresses: Collection[str]) -> tuple[Object, list[str]]:
    """Return the parts of a tenant's EndpointSlice that are forwarded, and the addresses in it that are not.

    `pod_addresses` are the addresses of the tenant's pods. A Service leads to nothing else, neither to another tenant's
    pod nor to a node.
    """
    refused: list[str] = []
    endpoints: list[Object] = []
    for endpoint in source.endpoints or ():
        addresses = endpoint.get("addresses") or []
        strange = [address for address in addresses if address not in pod_addresses]
        refused += strange
        if strange or not addresses:
            continue
        conditions = endpoint.get("conditions") or {}
        kept = {key: conditions[key] for key in _KEPT_CONDITIONS if conditions.get(key) is not None}
        endpoints.append({"addresses": addresses, "conditions": kept})
    ports = [{key: value for key, value in port.items() if value is not None} for port in source.ports or ()]
    return {"addressType": source.address_type, "endpoints": endpoints, "ports": ports}, refused


def forward_slice(source: SliceView, content: Object, *, service: Meta, tenant: TenantContext) -> Object:
    """Return the compute slice of a tenant's slice.

    Garbage collection deletes it with the compute Service `service`.
    """
    metadata = compute_metadata(tenant.name, source.metadata.namespace, source.metadata.name, source.metadata.uid)
    metadata["labels"] |= {SERVICE_NAME_LABEL: service.name, MANAGED_BY_LABEL: MANAGED_BY_GATEWAY}
    metadata["ownerReferences"] = [owner_reference(service)]
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, **content}


def resolve_aliases(targets: Mapping[str, str], addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of names that are aliases of names in `addresses`.

    `targets` holds the target of each alias.

    Each alias is followed once, since a tenant may chain thousands. A cycle has no address.
    """
    ends: dict[str, str] = {}
    for name in targets:
        way, last = [], name
        while last not in ends and (target := targets.get(last)) is not None:
            ends[last] = ""
            way.append(last)
            last = target
        ends.update(dict.fromkeys(way, ends.get(last) or addresses.get(last, "")))
    return {name: address for name, address in ends.items() if address}


def owner_reference(service: Meta) -> Object:
    """Return the owner reference by which a slice is deleted with its Service."""
    return {"apiVersion": "v1", "kind": "Service", "name": service.name, "uid": service.uid}


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
