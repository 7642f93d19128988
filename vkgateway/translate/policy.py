"""What a tenant's pod may not be: against policy, against the platform's own names, or not supported yet."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.model.names import COMPUTE_ROOT_CA, GROUP, is_forbidden_annotation, is_reserved
from vkgateway.model.objects import Object
from vkgateway.translate import security
from vkgateway.translate.context import ANY, PoolContext, TenantContext
from vkgateway.translate.down import is_scheduled
from vkgateway.translate.references import references
from vkgateway.translate.selectors import NodeTerms

NOT_SUPPORTED: Final = "NotSupported"
RESERVED: Final = "Reserved"
NOT_ALLOWED: Final = "NotAllowed"
NODE_AFFINITY: Final = "NodeAffinity"

_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a pod is not forwarded: the field, its value, the rule it breaks, and a sentence for the tenant.

    `rule` is a word without spaces: the name of a rule of the Pod Security Standards, or one of this module's.
    """

    field: str
    value: str
    rule: str
    message: str


def refusals(pod: Object, *, tenant: TenantContext, pool: PoolContext | None = None) -> tuple[Refusal, ...]:
    """Everything that stands against forwarding a tenant's pod; empty if nothing does.

    With the pool that the pod is bound to, also required node terms that its virtual node can never meet. Ephemeral
    containers are judged one by one, when they go down (`mutable.spec_changes`): none fails its pod.
    """
    spec = pod.get("spec") or {}
    if spec.get("ephemeralContainers"):
        spec = {**spec, "ephemeralContainers": []}
        pod = {**pod, "spec": spec}
    found = list(_reserved_metadata(pod.get("metadata") or {}))
    found += [
        Refusal(field=broken.field, value=broken.value, rule=broken.rule, message=broken.message)
        for broken in security.violations(pod, level=tenant.pod_security)
    ]
    found += _unsupported_fields(spec)
    for index, volume in enumerate(spec.get("volumes") or ()):
        found += _volume(volume, f"spec.volumes[{index}]")
        found += _volume_of_nodes(volume, f"spec.volumes[{index}]", tenant)
    found += _not_allowed(spec, tenant)
    found += reserved_references(pod)
    if pool is not None and not is_scheduled(pod):
        found += _contradiction(spec, pool)
    return tuple(found)


def _reserved_metadata(metadata: Mapping[str, Any]) -> Iterator[Refusal]:
    for kind, is_refused in (("labels", is_reserved), ("annotations", is_forbidden_annotation)):
        for key, value in (metadata.get(kind) or {}).items():
            if GROUP in key and is_refused(key):
                message = f"{kind[:-1]} {key} is reserved to the platform; take it off the pod"
                yield Refusal(field=f"metadata.{kind}[{key}]", value=value, rule=RESERVED, message=message)
    if _MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        message = "static pods are a node's own; a virtual node has none"
        field = f"metadata.annotations[{_MIRROR_ANNOTATION}]"
        yield Refusal(field=field, value="", rule=NOT_SUPPORTED, message=message)


_UNSUPPORTED_FIELDS: Final[Mapping[str, str]] = {
    "resourceClaims": "dynamic resource allocation is not supported yet; ask for extended resources in limits",
}


def _unsupported_fields(spec: Mapping[str, Any]) -> Iterator[Refusal]:
    for name, message in _UNSUPPORTED_FIELDS.items():
        if spec.get(name):
            yield Refusal(field=f"spec.{name}", value=_first_name(spec[name]), rule=NOT_SUPPORTED, message=message)


def _first_name(value: Any) -> str:
    entry = value[0] if isinstance(value, list) else value
    return str(next(iter(entry.values()), "")) if isinstance(entry, dict) else str(entry)


_UNSUPPORTED_VOLUMES: Final[Mapping[str, str]] = {
    "csi": "inline CSI volumes are not supported yet; use emptyDir, or a claim",
}
_UNSUPPORTED_SOURCES: Final[Mapping[str, str]] = {
    "clusterTrustBundle": "projected trust bundles are not supported yet; project a ConfigMap with the certificates",
    "podCertificate": "projected pod certificates are not supported yet; project a Secret with key and certificate",
}


def _volume(volume: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    name = str(volume.get("name", ""))
    for kind, why in _UNSUPPORTED_VOLUMES.items():
        if kind in volume:
            message = f"volume {name}: {why}"
            yield Refusal(field=f"{path}.{kind}", value=name, rule=NOT_SUPPORTED, message=message)
    for index, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
        field = f"{path}.projected.sources[{index}]"
        for kind, why in _UNSUPPORTED_SOURCES.items():
            if kind in source:
                message = f"volume {name}: {why}"
                yield Refusal(field=f"{field}.{kind}", value=name, rule=NOT_SUPPORTED, message=message)


_PODS_OWN_VOLUMES: Final = frozenset(
    {
        "configMap",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
        *_UNSUPPORTED_VOLUMES,
    }
)
"""Volumes that bring nothing but what is the tenant's; those not supported yet are told of elsewhere."""


def _volume_of_nodes(volume: Mapping[str, Any], path: str, tenant: TenantContext) -> Iterator[Refusal]:
    """Disks and file systems that nodes mount by their own name and credentials: whoever knows an id, has the data.

    Level baseline allows them, for a cluster of one owner; here the nodes serve many. Host paths are that level's.
    """
    if tenant.pod_security == "privileged":
        return
    for kind in volume.keys() - _PODS_OWN_VOLUMES - {"name", "hostPath"}:
        name = str(volume.get("name", ""))
        message = f"volume {name}: {kind} volumes are mounted in the nodes' name, and not allowed to this tenant"
        yield Refusal(field=f"{path}.{kind}", value=name, rule=NOT_ALLOWED, message=message)


def _not_allowed(spec: Mapping[str, Any], tenant: TenantContext) -> Iterator[Refusal]:
    runtime_class = spec.get("runtimeClassName")
    allowed = (*tenant.runtime_classes, *tenant.runtime_class_names)
    if runtime_class and not _allows(allowed, runtime_class):
        message = f"runtime class {runtime_class} is not allowed to this tenant{_instead(allowed)}"
        yield Refusal(field="spec.runtimeClassName", value=runtime_class, rule=NOT_ALLOWED, message=message)
    for index, secret in enumerate(spec.get("imagePullSecrets") or ()):
        name = secret.get("name") or ""
        if name and not _allows(tenant.image_pull_secrets, name):
            message = f"image pull secret {name} is not allowed to this tenant{_instead(tenant.image_pull_secrets)}"
            yield Refusal(field=f"spec.imagePullSecrets[{index}].name", value=name, rule=NOT_ALLOWED, message=message)
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        key = toleration.get("key") or ""
        if GROUP in key and is_reserved(key):
            message = f"taint {key} is the platform's own; take the toleration off the pod"
            yield Refusal(field=f"spec.tolerations[{index}].key", value=key, rule=RESERVED, message=message)


def _allows(names: tuple[str, ...], name: str) -> bool:
    return name in names or ANY in names


def _instead(names: tuple[str, ...]) -> str:
    return f"; allowed: {', '.join(names)}" if names else "; it is allowed none"


def reserved_references(pod: Object) -> Iterator[Refusal]:
    """What a pod refers to under a name that is the platform's own below."""
    if COMPUTE_ROOT_CA in references(pod).config_maps:
        message = f"the name {COMPUTE_ROOT_CA} is the platform's own; give the ConfigMap another"
        yield Refusal(field="spec", value=COMPUTE_ROOT_CA, rule=RESERVED, message=message)


def _contradiction(spec: Mapping[str, Any], pool: PoolContext) -> Iterator[Refusal]:
    found = NodeTerms(pool, scheduled=False).contradiction(spec)
    if found is not None:
        field, value = found
        message = f"node {pool.node_name}, named by hand, does not meet the pod's node affinity or selector"
        yield Refusal(field=field, value=value, rule=NODE_AFFINITY, message=message)
