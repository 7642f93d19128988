"""Containers on their way down: environment and volumes that show the tenant's names instead of the compute's."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from vkgateway.model.names import COMPUTE_ROOT_CA, TENANT_ROOT_CA, token_key
from vkgateway.model.objects import Object
from vkgateway.translate import downward_api
from vkgateway.translate.context import TenantContext
from vkgateway.translate.pod_references import volume_claim
from vkgateway.translate.size_budget import SizeBudget

NO_RENAMED_CLAIMS: Final[Mapping[str, str]] = {}
"""All claims are called below as they are above."""

_PROJECTED_MODE: Final = 0o644
"""Of files in projected volumes that name none (core/v1 ProjectedVolumeSource)."""
_OTHERS_READ: Final = 0o004
_ALL_READ: Final = 0o444


@dataclass(frozen=True, slots=True, kw_only=True)
class PodValues:
    """What containers of one pod must see: the API server's variables and the tenant's own field values."""

    variables: list[Object]
    variable_names: frozenset[str]
    field_values: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    token_secret: str
    tenant_only_prefixes: tuple[str, ...] = ()
    """Prefixes of labels and annotations that stay above."""
    pod_name: str = ""
    """The pod's name."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """The tenant's own."""
    renamed_claims: Mapping[str, str] = field(default_factory=dict)
    """The tenant's claims that are called otherwise below."""
    size_budget: SizeBudget = field(default_factory=SizeBudget)
    """For values that are written out: each variable of a container may ask for the same large annotation."""
    derived_annotations: dict[str, str] = field(default_factory=dict)
    """Annotations that rewritten downward API volumes read, with the fields they hold; filled while those go down."""


def forward_container(container: Object, values: PodValues) -> Object:
    """A container with the tenant's environment; everything else in it stays as it is. Raises OversizeError.

    The variables of the tenant's API server come first, as a kubelet would set them, unless the container sets them
    itself. Fields that only the compute kubelet knows (addresses, resources) are left to it.
    """
    env = container.get("env")
    made = {**container, "env": values.variables if not env else _forward_env(env, values)}
    sources = container.get("envFrom")
    if sources and any(_is_root_ca(source.get("configMapRef")) for source in sources):
        made["envFrom"] = [_rename_root_ca(source, "configMapRef") for source in sources]
    return made


def _forward_env(env: list[Object], values: PodValues) -> list[Object]:
    names = {entry["name"] for entry in env}
    given = values.variables
    if not names.isdisjoint(values.variable_names):
        given = [entry for entry in given if entry["name"] not in names]
    return given + [entry if "valueFrom" not in entry else _forward_variable(entry, values) for entry in env]


def _forward_variable(entry: Object, values: PodValues) -> Object:
    source = entry["valueFrom"] or {}
    reference = source.get("fieldRef")
    if reference:
        path = reference["fieldPath"]
        if path in values.field_values:
            return _inline_value(entry, values.field_values[path], values.size_budget)
        if downward_api.is_tenant_only(path, staying=values.tenant_only_prefixes):
            own = downward_api.tenant_value(path, labels=values.labels, annotations=values.annotations)
            return _inline_value(entry, own, values.size_budget)
    elif _is_root_ca(source.get("configMapKeyRef")):
        return {**entry, "valueFrom": _rename_root_ca(source, "configMapKeyRef")}
    return entry


def _inline_value(entry: Object, value: str, budget: SizeBudget) -> Object:
    """The variable with a fixed value; `$` is doubled, since plain values are expanded and field values are not."""
    budget.charge_size(len(value))
    made = {key: kept for key, kept in entry.items() if key != "valueFrom"}
    made["value"] = value.replace("$", "$$")
    return made


def _is_root_ca(reference: Mapping[str, Any] | None) -> bool:
    return reference is not None and reference.get("name") == TENANT_ROOT_CA


def _rename_root_ca(holder: Object, key: str) -> Object:
    reference: Object = holder.get(key) or {}
    return {**holder, key: {**reference, "name": COMPUTE_ROOT_CA}} if _is_root_ca(reference) else holder


def forward_volume(volume: Object, values: PodValues) -> Object:
    """A volume whose projected tokens, root certificates and downward API fields are the tenant's.

    A generic ephemeral one is from the claim that the tenant's own controller made for it: below, none makes another.
    """
    if volume.get("projected"):
        projected = volume["projected"]
        mode = projected.get("defaultMode", _PROJECTED_MODE)
        sources = [
            _forward_projection(source, volume["name"], index, mode, values)
            for index, source in enumerate(projected.get("sources") or ())
        ]
        return {**volume, "projected": {**projected, "sources": sources}}
    if volume.get("downwardAPI"):
        return {**volume, "downwardAPI": _forward_downward_api(volume["downwardAPI"], values)}
    if "configMap" in volume:
        return _rename_root_ca(volume, "configMap")
    claim = volume_claim(volume, values.pod_name)
    if claim:
        source = volume.get("persistentVolumeClaim") or {}
        made = {**source, "claimName": values.renamed_claims.get(claim, claim)}
        return {key: kept for key, kept in volume.items() if key != "ephemeral"} | {"persistentVolumeClaim": made}
    return volume


def _forward_projection(source: Object, volume: str, index: int, mode: int, values: PodValues) -> Object:
    token = source.get("serviceAccountToken")
    if token:
        item = {"key": token_key(volume, index), "path": token["path"]}
        if not mode & _OTHERS_READ and _has_single_user(values.spec):
            item["mode"] = mode | _ALL_READ
        return {"secret": {"name": values.token_secret, "items": [item]}}
    if source.get("downwardAPI"):
        return {**source, "downwardAPI": _forward_downward_api(source["downwardAPI"], values)}
    return _rename_root_ca(source, "configMap")


def _has_single_user(spec: Mapping[str, Any]) -> bool:
    """Whether a kubelet gives tokens to the one user that all containers run as, so that it may read them.

    Out of a Secret they are root's, whom only a mode lets others than a group of the pod's read. Ephemeral containers
    count at the kubelet, too, but come when the file is there (`FsUserFrom` in Kubernetes' `pkg/volume/util`).
    """
    security = spec.get("securityContext") or {}
    if security.get("fsGroup") is not None:
        return False
    users = {
        (container.get("securityContext") or {}).get("runAsUser", security.get("runAsUser"))
        for kind in ("initContainers", "containers")
        for container in spec.get(kind) or ()
    }
    return len(users) == 1 and None not in users


def _forward_downward_api(source: Object, values: PodValues) -> Object:
    return {**source, "items": [_forward_downward_item(item, values) for item in source.get("items") or ()]}


def _forward_downward_item(item: Object, values: PodValues) -> Object:
    reference: Object = item.get("fieldRef") or {}
    path = reference.get("fieldPath", "")
    annotation = downward_api.volume_annotation(path, staying=values.tenant_only_prefixes)
    if annotation is None:
        return item
    if downward_api.is_derived(annotation):
        values.derived_annotations[annotation] = path
    return {**item, "fieldRef": {**reference, "fieldPath": downward_api.annotation_path(annotation)}}


@lru_cache(maxsize=1024)
def api_variables(host: str, port: int) -> tuple[list[Object], frozenset[str]]:
    """The variables by which programs find the API server, as a kubelet sets them; and their names.

    All of a kubelet's are named, so that none is left to show the compute cluster's own Service. The list is shared:
    nobody may change it.
    """
    name = f"[{host}]" if ":" in host else host
    address = f"tcp://{name}:{port}"
    variables = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        "KUBERNETES_PORT": address,
        "KUBERNETES_PORT_443_TCP": address,
        "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
        "KUBERNETES_PORT_443_TCP_PORT": str(port),
        "KUBERNETES_PORT_443_TCP_ADDR": host,
    }
    return [{"name": key, "value": value} for key, value in variables.items()], frozenset(variables)


@lru_cache(maxsize=1024)
def api_host_aliases(host: str, cluster_domain: str, *, in_default: bool) -> list[Object]:
    """hostAliases by which the names of the tenant's `kubernetes` Service lead to its API server.

    Empty if the API server is known by name only. The bare name is known in namespace `default` alone, as in DNS. The
    list is shared: nobody may change it.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return []
    names = ["kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{cluster_domain}"]
    return [{"ip": host, "hostnames": ["kubernetes", *names] if in_default else names}]


def pod_values(
    pod: Object,
    *,
    tenant: TenantContext,
    node_name: str,
    token_secret: str,
    claims: Mapping[str, str] = NO_RENAMED_CLAIMS,
) -> PodValues:
    """Gather what a pod's containers must see."""
    metadata, spec = pod["metadata"], pod["spec"]
    node = spec.get("nodeName") or node_name
    variables, names = api_variables(*tenant.api_endpoint)
    return PodValues(
        variables=variables,
        variable_names=names,
        field_values={
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": node,
            "spec.host": node,  # an old name of it, which API servers take and kubelets know
            "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        },
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        token_secret=token_secret,
        tenant_only_prefixes=tenant.tenant_only_annotations,
        pod_name=metadata["name"],
        spec=spec,
        renamed_claims=claims,
    )
