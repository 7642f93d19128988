"""Containers of compute pods: environment and volumes that show the tenant's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from vkgateway.api.names import COMPUTE_ROOT_CA, TENANT_ROOT_CA, host_in_url, is_ip_address, token_key
from vkgateway.api.objects import Object
from vkgateway.api.requests import container_requests, is_extended
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.pods.translation import downward_api
from vkgateway.kinds.pods.translation.pod_references import volume_claim
from vkgateway.kinds.size_budget import SizeBudget

NO_RENAMED_CLAIMS: Final[Mapping[str, str]] = {}
"""All claims have the same names in both clusters."""

_PROJECTED_MODE: Final = 0o644
"""File mode of projected volumes that set none (core/v1 ProjectedVolumeSource)."""
_OTHERS_READ: Final = 0o004
_OWNER_ONLY: Final = 0o600
_ALL_READ: Final = 0o444


@dataclass(frozen=True, slots=True, kw_only=True)
class PodValues:
    """Values that the containers of one pod must see: API server variables and the tenant pod's field values."""

    variables: list[Object]
    field_values: Mapping[str, str]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    token_secret: str
    tenant_only_prefixes: tuple[str, ...] = ()
    """Prefixes of labels and annotations that are not forwarded."""
    pod_name: str = ""
    """Name of the pod."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Spec of the tenant pod."""
    renamed_claims: Mapping[str, str] = field(default_factory=dict)
    """Compute names of the tenant's claims, where they differ."""
    size_budget: SizeBudget = field(default_factory=SizeBudget)
    """Bound for inlined values: each variable of a container may refer to the same large annotation."""
    derived_annotations: dict[str, str] = field(default_factory=dict)
    """Annotations that rewritten downward API volumes read. Filled by `forward_volume`."""


def forward_container(container: Object, values: PodValues) -> Object:
    """Return a container with the tenant's environment and otherwise unchanged.

    The variables of the tenant's API server come first, as a kubelet sets them, unless the container sets them; then
    those that hide devices from a container that requests none (`device_variables`). Fields that only the compute
    kubelet knows (addresses, resources) are left to it.

    Raises:
        OversizeError: the inlined values are larger than any API server accepts.
    """
    hiding = hiding_variables(container)
    made = {**container, "env": _forward_env(container.get("env") or [], values, hiding)}
    sources = container.get("envFrom")
    if sources and any(_is_root_ca(source.get("configMapRef")) for source in sources):
        made["envFrom"] = [_rename_root_ca(source, "configMapRef") for source in sources]
    return made


def _forward_env(env: list[Object], values: PodValues, hiding: tuple[Object, ...]) -> list[Object]:
    hidden = {entry["name"] for entry in hiding}
    # Not every runtime takes the other values that hide devices.
    env = [entry for entry in env if not (entry["name"] in hidden and hides_devices(entry))]
    names = {entry["name"] for entry in env}
    given = [entry for entry in (*values.variables, *hiding) if entry["name"] not in names]
    return given + [entry if "valueFrom" not in entry else _forward_variable(entry, values) for entry in env]


def _forward_variable(entry: Object, values: PodValues) -> Object:
    source = entry["valueFrom"] or {}
    reference = source.get("fieldRef")
    if reference:
        path = reference["fieldPath"]
        if path in values.field_values:
            return _inline_value(entry, values.field_values[path], values.size_budget)
        if downward_api.is_tenant_only(path, tenant_only=values.tenant_only_prefixes):
            own = downward_api.tenant_value(path, labels=values.labels, annotations=values.annotations)
            return _inline_value(entry, own, values.size_budget)
    elif _is_root_ca(source.get("configMapKeyRef")):
        return {**entry, "valueFrom": _rename_root_ca(source, "configMapKeyRef")}
    return entry


def _inline_value(entry: Object, value: str, budget: SizeBudget) -> Object:
    """Return the variable with a fixed value.

    `$` is doubled because Kubernetes expands plain values, but not field values.
    """
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
    """Return a volume whose projected tokens, root certificates and downward API fields are the tenant's.

    A generic ephemeral volume refers to the claim that the tenant cluster's controller created. The compute cluster
    creates no other.
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
        if (own := _token_mode(values.spec, mode)) != mode:
            item["mode"] = own
        return {"secret": {"name": values.token_secret, "items": [item]}}
    if source.get("downwardAPI"):
        return {**source, "downwardAPI": _forward_downward_api(source["downwardAPI"], values)}
    return _rename_root_ca(source, "configMap")


def _token_mode(spec: Mapping[str, Any], mode: int) -> int:
    """Return the mode of a token's file, given that of the volume's other files.

    A kubelet gives the file to the user of all containers, if they have only one, with the mode 0600, to which it adds
    the group `fsGroup` (`FsUserFrom` in Kubernetes' `pkg/volume/util`). Here the file is one of a Secret and belongs to
    root: only its mode lets a user outside the pod's groups read it. A kubelet also counts ephemeral containers, but
    they start after the file was written.
    """
    security = spec.get("securityContext") or {}
    users = {
        (container.get("securityContext") or {}).get("runAsUser", security.get("runAsUser"))
        for kind in ("initContainers", "containers")
        for container in spec.get(kind) or ()
    }
    if security.get("fsGroup") is not None or users == {0}:
        return _OWNER_ONLY
    is_unreadable = len(users) == 1 and None not in users and not mode & _OTHERS_READ
    return mode | _ALL_READ if is_unreadable else mode


def _forward_downward_api(source: Object, values: PodValues) -> Object:
    return {**source, "items": [_forward_downward_item(item, values) for item in source.get("items") or ()]}


def _forward_downward_item(item: Object, values: PodValues) -> Object:
    reference: Object = item.get("fieldRef") or {}
    path = reference.get("fieldPath", "")
    annotation = downward_api.volume_annotation(path, tenant_only=values.tenant_only_prefixes)
    if annotation is None:
        return item
    if downward_api.is_derived(annotation):
        values.derived_annotations[annotation] = downward_api.tenant_value(
            path, labels=values.labels, annotations=values.annotations
        )
    return {**item, "fieldRef": {**reference, "fieldPath": downward_api.annotation_path(annotation)}}


@lru_cache(maxsize=1024)
def api_variables(host: str, port: int) -> list[Object]:
    """Return the variables by which programs find the API server, as a kubelet sets them.

    They replace all of a kubelet's variables, so that none shows the compute cluster's Service. The list is shared: do
    not change it.
    """
    address = f"tcp://{host_in_url(host)}:{port}"
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
    return [{"name": key, "value": value} for key, value in variables.items()]


@lru_cache(maxsize=1024)
def api_host_aliases(host: str, cluster_domain: str, *, in_default: bool) -> list[Object]:
    """Return hostAliases that resolve the names of the tenant's `kubernetes` Service to its API server.

    The result is empty if `host` is not an IP address. The bare name is set in namespace `default` only, as in DNS. The
    list is shared: do not change it.
    """
    if not is_ip_address(host):
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
    """Return the values that a pod's containers must see."""
    metadata, spec = pod["metadata"], pod["spec"]
    node = spec.get("nodeName") or node_name
    return PodValues(
        variables=api_variables(*tenant.api_endpoint),
        field_values={
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": node,
            "spec.host": node,  # deprecated name of spec.nodeName that API servers accept and kubelets resolve
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


# A pod without devices would otherwise see all of a node's, as its image may set such a variable. Variables that a
# program reads itself, such as CUDA_VISIBLE_DEVICES, give it nothing and are not among these.
NO_DEVICES: Final = "void"
"""Value with which NVIDIA's runtime, and those made after it, leave a container alone."""

HIDING_VALUES: Final = ("", "none", NO_DEVICES)
"""Values that give no device. Controllers set them for pods that should see none, such as the launcher of an MPIJob."""

_VISIBLE: Final = (
    "NVIDIA_VISIBLE_DEVICES",
    "AMD_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",  # Intel Gaudi
    "ASCEND_VISIBLE_DEVICES",
    "METAX_VISIBLE_DEVICES",
    "MTHREADS_VISIBLE_DEVICES",
    "CAMBRICON_VISIBLE_DEVICES",
)
DEVICE_VARIABLES: Final = (
    *_VISIBLE,
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "ASCEND_RUNTIME_MOUNTS",
    "ASCEND_VNPU_SPECS",
)
"""Variables that tenants may set to `HIDING_VALUES` only. https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/"""

_HIDING: Final[tuple[Object, ...]] = tuple({"name": name, "value": NO_DEVICES} for name in _VISIBLE)


def hiding_variables(container: Object) -> tuple[Object, ...]:
    """Return the variables that give a container no devices: none if it requests some.

    For such a container, the device plugin of its node sets the variable.
    """
    requested = any(amount and is_extended(name) for name, amount in container_requests(container).items())
    return () if requested else _HIDING


def hides_devices(variable: Object) -> bool:
    """Return whether a variable of a container is a device variable that gives no device."""
    is_literal = not variable.get("valueFrom") and (variable.get("value") or "") in HIDING_VALUES
    return is_literal and variable["name"] in DEVICE_VARIABLES


def set_variables(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables of a container that could give it devices."""
    for entry in container.get("env") or ():
        if entry["name"] in DEVICE_VARIABLES and not hides_devices(entry):
            yield entry["name"]


def splitting_prefixes(container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the prefixes of `envFrom` that would make a device variable of another key of a ConfigMap or Secret."""
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix") or ""
        if prefix and any(name.startswith(prefix) for name in DEVICE_VARIABLES):
            yield prefix


def without_device_keys(source: Object) -> Object:
    """Return a ConfigMap or Secret without keys that `envFrom` would make device variables."""
    kept = source
    for part in ("data", "binaryData", "stringData"):
        values = kept.get(part)
        if values and not values.keys().isdisjoint(DEVICE_VARIABLES):
            kept = {**kept, part: {key: value for key, value in values.items() if key not in DEVICE_VARIABLES}}
    return kept
