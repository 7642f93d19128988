"""Services on their way down: one cluster address below for each that has one above, and no outside address unasked."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from vkgateway.model.names import (
    CLUSTER_IP_ANNOTATION,
    FIELD_MANAGER,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.model.objects import Meta, Object
from vkgateway.translate.context import TenantContext
from vkgateway.translate.exposure import LOAD_BALANCER, NODE_PORT, exposed_fields, exposed_keys, service_exposure
from vkgateway.translate.labels import labels_to_compute

API_SERVICE: Final = ("default", "kubernetes")
"""The Service of the API server itself, which pods find by other means."""
METRICS_SERVICE: Final = ("kube-system", "vkgateway-metrics")
"""The Service behind which the tenant's API server finds the gateway's metrics.k8s.io."""
DNS_SERVICE: Final = ("kube-system", "kube-dns")
"""The Service of the name server."""
NAME_SERVER_ANNOTATION: Final = "vkgateway.io/name-server"
"""On the Service `DNS_SERVICE` of a tenant: it leads to the platform's name server, and the gateway made it."""
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY_GATEWAY: Final = f"{FIELD_MANAGER}.io"
"""What `MANAGED_BY_LABEL` says on slices of ours: Kubernetes' own controller leaves those of others alone."""
MANAGED_BY_KUBERNETES: Final = "endpointslice-controller.k8s.io"
"""What it says on slices that Kubernetes makes from a Service's selector."""

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
    """A Service. Its spec is small, and kept whole."""

    metadata: Meta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}

    @property
    def cluster_ip(self) -> str:
        """The address that leads to it inside its cluster; empty where it has none."""
        address: str = self.spec.get("clusterIP") or ""
        return "" if address == "None" or self.spec.get("type") == "ExternalName" else address

    @property
    def external_exposure(self) -> list[str]:
        """What it asks for beyond a cluster address: ports of nodes, load balancers, addresses of others."""
        kind = self.spec.get("type")
        asked = [f"type {kind}"] if kind in (NODE_PORT, LOAD_BALANCER) else []
        return asked + (["externalIPs"] if self.spec.get("externalIPs") else [])

    def unforwarded_exposure(self, *, tenant: TenantContext) -> list[str]:
        """Return what of that the compute cluster does not open for the tenant."""
        return [
            asked for asked in self.external_exposure if asked == "externalIPs" or not is_forwarded(self, tenant=tenant)
        ]


class SliceView(msgspec.Struct, kw_only=True, rename="camel"):
    """An EndpointSlice, whole but for its metadata."""

    metadata: Meta
    address_type: str = ""
    endpoints: list[dict[str, Any]] | None = None
    ports: list[dict[str, Any]] | None = None

    @property
    def service_name(self) -> str:
        """Name of the Service that it is of, or ""."""
        return self.metadata.labels.get(SERVICE_NAME_LABEL, "")

    @property
    def managed_by(self) -> str:
        """Who writes it."""
        return self.metadata.labels.get(MANAGED_BY_LABEL, "")


def is_platform_service(view: ServiceView) -> bool:
    """Whether a tenant's Service leads to the platform: own Services of the platform stand for it below."""
    key = view.metadata.key
    return key in (API_SERVICE, METRICS_SERVICE) or (
        key == DNS_SERVICE and NAME_SERVER_ANNOTATION in view.metadata.annotations
    )


decode_service: Final = msgspec.json.Decoder(ServiceView).decode
decode_slice: Final = msgspec.json.Decoder(SliceView).decode


def service_spec(spec: Object) -> Object:
    """What counts of a Service's spec, above or below: selector, ports, and how a backend is chosen.

    Neither type, node ports, load balancers nor external addresses: those would open something on nodes, or draw
    traffic of others to the tenant's pods (CVE-2020-8554). The selector chooses among the pods of one compute
    namespace, which are the tenant's own.
    """
    made: Object = {key: spec[key] for key in _KEPT_FIELDS if spec.get(key) not in (None, False)}
    made["selector"] = dict(spec.get("selector") or {})
    made["ports"] = [
        {key: port[key] for key in _KEPT_PORT_FIELDS if port.get(key) not in (None, "")}
        for port in spec.get("ports") or ()
    ]
    return made


def is_forwarded(source: ServiceView, *, tenant: TenantContext) -> bool:
    """Tell whether a Service is reached from outside in the compute cluster, too."""
    return service_exposure(source.spec, tenant=tenant) == "Forward"


def exposed_spec(spec: Object) -> Object:
    """Return what `service_spec` does, and what opens the Service to the outside."""
    made = service_spec(spec) | exposed_fields(spec)
    if spec["type"] == NODE_PORT:
        numbers = [port.get("nodePort") for port in spec.get("ports") or ()]
        made["ports"] = [
            port | ({"nodePort": number} if number else {}) for port, number in zip(made["ports"], numbers, strict=True)
        ]
    return made


def forward_spec(source: ServiceView, *, tenant: TenantContext) -> Object:
    """What `service_spec` says of the compute Service: compute pods carry some labels under other keys."""
    spec = exposed_spec(source.spec) if is_forwarded(source, tenant=tenant) else service_spec(source.spec)
    return spec | {"selector": labels_to_compute(spec["selector"], tenant.tenant_only_prefixes)}


def is_service_current(source: ServiceView, below: ServiceView, *, tenant: TenantContext) -> bool:
    """Tell whether a compute Service says what `forward_service` makes of the tenant's, its address aside."""
    if not is_forwarded(source, tenant=tenant):
        return not below.external_exposure and service_spec(below.spec) == forward_spec(source, tenant=tenant)
    wanted = forward_service(source, tenant=tenant)["metadata"]
    return (
        below.spec.get("type") == source.spec["type"]
        and exposed_spec(below.spec) == forward_spec(source, tenant=tenant)
        and wanted["labels"].items() <= below.metadata.labels.items()
        and wanted["annotations"].items() <= below.metadata.annotations.items()
    )


def forward_service(source: ServiceView, *, tenant: TenantContext) -> Object:
    """The compute Service that stands for a tenant's Service with a cluster address; the server chooses its address."""
    spec = forward_spec(source, tenant=tenant)
    if not spec["selector"]:
        del spec["selector"]
    metadata = _forward_metadata(source.metadata, tenant)
    metadata["annotations"][CLUSTER_IP_ANNOTATION] = source.cluster_ip
    if is_forwarded(source, tenant=tenant):
        metadata["labels"] = exposed_keys(source.metadata.labels, tenant=tenant) | metadata["labels"]
        metadata["annotations"] = exposed_keys(source.metadata.annotations, tenant=tenant) | metadata["annotations"]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "ClusterIP", **spec}}


def slice_content(source: SliceView, *, own: Collection[str]) -> tuple[Object, list[str]]:
    """What of a slice that a tenant wrote may stand below, and the addresses in it that may not.

    `own` are the addresses of the tenant's pods: a Service leads to nothing else, no stranger's pod and no node.
    """
    refused: list[str] = []
    endpoints: list[Object] = []
    for endpoint in source.endpoints or ():
        addresses = endpoint.get("addresses") or []
        strange = [address for address in addresses if address not in own]
        refused += strange
        if strange or not addresses:
            continue
        conditions = endpoint.get("conditions") or {}
        kept = {key: conditions[key] for key in _KEPT_CONDITIONS if conditions.get(key) is not None}
        endpoints.append({"addresses": addresses, "conditions": kept})
    ports = [{key: value for key, value in port.items() if value is not None} for port in source.ports or ()]
    return {"addressType": source.address_type, "endpoints": endpoints, "ports": ports}, refused


def forward_slice(source: SliceView, content: Object, *, service: Meta, tenant: TenantContext) -> Object:
    """The compute slice that stands for one that a tenant wrote; it goes with `service_name`, the compute Service."""
    metadata = _forward_metadata(source.metadata, tenant)
    metadata["labels"] |= {SERVICE_NAME_LABEL: service.name, MANAGED_BY_LABEL: MANAGED_BY_GATEWAY}
    metadata["ownerReferences"] = [owner_reference(service)]
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, **content}


def resolve_aliases(targets: Mapping[str, str], addresses: Mapping[str, str]) -> dict[str, str]:
    """The addresses of names that are other names of those in `addresses`; `targets` says of each what it stands for.

    Each is followed once, since a tenant may chain thousands. A circle leads nowhere.
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
    """By which a slice goes with its Service."""
    return {"apiVersion": "v1", "kind": "Service", "name": service.name, "uid": service.uid}


def _forward_metadata(source: Meta, tenant: TenantContext) -> Object:
    """Labels and annotations stay above: below, controllers of load balancers and meshes act on them."""
    return {
        "name": source.name,
        "namespace": compute_namespace(tenant.name, source.namespace),
        "labels": {TENANT_LABEL: tenant.name},
        "annotations": {
            NAMESPACE_ANNOTATION: source.namespace,
            NAME_ANNOTATION: source.name,
            UID_ANNOTATION: source.uid,
        },
    }
