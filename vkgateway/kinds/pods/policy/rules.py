"""Checks of a tenant's pod against policy, reserved names and unsupported fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from vkgateway.api.names import COMPUTE_ROOT_CA, GROUP, is_forbidden_annotation, is_reserved
from vkgateway.api.objects import Object
from vkgateway.api.types import PodSecurity
from vkgateway.kinds.context import ANY, PoolContext
from vkgateway.kinds.pods.policy import security
from vkgateway.kinds.pods.translation import containers as device_variables
from vkgateway.kinds.pods.translation.node_terms import NodeTerms
from vkgateway.kinds.pods.translation.pod_references import find_references
from vkgateway.kinds.pods.translation.to_compute import is_scheduled

# A text starts with the field. Names in braces are placeholders. This module fills them in for pods that the gateway
# checks, `admission.py` turns the texts into expressions of the tenant's admission policy.
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"

RESERVED_KEY: Final = "metadata.{kind}[{key}]: the key is reserved for the platform; remove it"
STATIC_POD: Final = (
    f"metadata.annotations[{MIRROR_ANNOTATION}]: virtual nodes run no static pods; remove the annotation"
)
RESOURCE_CLAIM: Final = (
    "spec.resourceClaims[{name}]: dynamic resource allocation is not supported; request extended resources in limits"
)
USER_NAMESPACE: Final = (
    "spec.hostUsers: false is not allowed for this tenant: its pods get no user namespace; remove the field"
)
UNSUPPORTED_VOLUMES: Final[Mapping[str, str]] = {
    "csi": "spec.volumes[{name}].csi: inline CSI volumes are not supported; use emptyDir or a PersistentVolumeClaim",
}
_SOURCE: Final = "spec.volumes[{name}].projected.sources[*]."
UNSUPPORTED_SOURCES: Final[Mapping[str, str]] = {
    "clusterTrustBundle": f"{_SOURCE}clusterTrustBundle: trust bundles are not supported; "
    "project a ConfigMap with the certificates",
    "podCertificate": f"{_SOURCE}podCertificate: pod certificates are not supported; "
    "project a Secret with key and certificate",
}
EMPTY_SOURCE: Final = (
    "spec.volumes[{name}].projected.sources[*]: a source is empty, which is what the API server makes of the sources "
    "clusterTrustBundle and podCertificate; they are not supported, project a ConfigMap or a Secret"
)
NODE_VOLUME: Final = (
    "spec.volumes[{name}].{kind}: nodes mount {kind} volumes with their own credentials, which is not allowed for this "
    "tenant; use a PersistentVolumeClaim"
)
DEVICE_VARIABLE: Final = (
    "spec: container {container} sets {name}, by which container runtimes give devices that no one requested; remove "
    "the variable, and request devices in resources.limits"
)
DEVICE_PREFIX: Final = (
    "spec: container {container} has the prefix {name} in envFrom, which could make a variable by which container "
    "runtimes give devices that no one requested; choose another prefix"
)
RUNTIME_CLASS: Final = (
    "spec.runtimeClassName: runtime class {name} is not allowed for this tenant; allowed runtime classes: {allowed}"
)
IMAGE_PULL: Final = (
    "spec.imagePullSecrets[{name}]: image pull secret {name} is not allowed for this tenant; allowed secrets: {allowed}"
)
TOLERATION: Final = "spec.tolerations[{key}]: the taint {key} is reserved for the platform; remove the toleration"
ROOT_CA: Final = (
    "spec: the ConfigMap name vkgateway-root-ca.crt is reserved for the platform; give the ConfigMap another name"
)


SERVICE_TYPE: Final = "spec.type: {kind} is not allowed for this tenant; use ClusterIP"


def render_names(names: Iterable[str]) -> str:
    """Return an allow-list as text."""
    return ", ".join(names) or "none"


NOT_SUPPORTED: Final = "NotSupported"
RESERVED: Final = "Reserved"
NOT_ALLOWED: Final = "NotAllowed"
NODE_AFFINITY: Final = "NodeAffinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Reason why a pod is not forwarded: field, value, broken rule, and a sentence for the tenant.

    `rule` is a word without spaces: the name of a rule of the Pod Security Standards, or one of this module's.
    """

    field: str
    value: str
    rule: str
    message: str


def make_refusal(text: str, rule: str, value: str, **names: str) -> Refusal:
    """Return a refusal with a text of `refusal_texts`, filled in. The text starts with the field."""
    message = text.format(**names)
    return Refusal(field=message.partition(": ")[0], value=value, rule=rule, message=message)


class PodPolicy(Protocol):
    """Part of a tenant's policy that applies to pods."""

    @property
    def pod_security(self) -> PodSecurity:
        """Level of the Pod Security Standards."""

    @property
    def runtime_classes(self) -> tuple[str, ...]:
        """Allowed runtime classes."""

    @property
    def runtime_class_names(self) -> Mapping[str, str]:
        """Further allowed runtime classes, with their names in compute clusters."""

    @property
    def image_pull_secrets(self) -> tuple[str, ...]:
        """Allowed image pull secrets."""

    @property
    def user_namespaces(self) -> bool:
        """Whether pods may request a user namespace."""


def find_refusals(pod: Object, *, tenant: PodPolicy, pool: PoolContext | None = None) -> tuple[Refusal, ...]:
    """Return all reasons against forwarding a tenant's pod, empty if there are none.

    The tenant's API server enforces the same rules with the same messages (`admission`), except the one about the pool.
    With `pool`, the pod's required node terms are checked, too: the virtual node must be able to meet them. Ephemeral
    containers are checked one by one when they are forwarded (`pod_diff.diff_pods`). A refused one does not fail its
    pod.
    """
    spec = pod.get("spec") or {}
    if spec.get("ephemeralContainers"):
        spec = {**spec, "ephemeralContainers": []}
        pod = {**pod, "spec": spec}
    found = list(_reserved_metadata(pod.get("metadata") or {}))
    found += [
        Refusal(field=broken.field, value=broken.value, rule=broken.rule, message=broken.message)
        for broken in security.find_violations(pod, level=tenant.pod_security)
    ]
    found += _unsupported_fields(spec, tenant)
    for volume in spec.get("volumes") or ():
        found += _unsupported_volume(volume)
        found += _node_volume(volume, tenant)
    found += device_refusals([*(spec.get("containers") or ()), *(spec.get("initContainers") or ())], tenant)
    found += _disallowed_fields(spec, tenant)
    found += reserved_references(pod)
    if pool is not None and not is_scheduled(pod):
        found += _affinity_conflict(spec, pool)
    return tuple(found)


POD_VOLUMES: Final = frozenset(
    {
        "configMap",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
        *UNSUPPORTED_VOLUMES,
    }
)
"""Volume types that give access to the tenant's data only. Unsupported ones have a separate rule."""


def _reserved_metadata(metadata: Mapping[str, Any]) -> Iterator[Refusal]:
    for kind, is_refused in (("labels", is_reserved), ("annotations", is_forbidden_annotation)):
        for key, value in (metadata.get(kind) or {}).items():
            if GROUP in key and is_refused(key):
                yield make_refusal(RESERVED_KEY, RESERVED, value, kind=kind, key=key)
    if MIRROR_ANNOTATION in (metadata.get("annotations") or {}):
        yield make_refusal(STATIC_POD, NOT_SUPPORTED, "")


def _unsupported_fields(spec: Mapping[str, Any], policy: PodPolicy) -> Iterator[Refusal]:
    for claim in (spec.get("resourceClaims") or ())[:1]:
        yield make_refusal(RESOURCE_CLAIM, NOT_SUPPORTED, claim["name"], name=claim["name"])
    if spec.get("hostUsers") is False and not policy.user_namespaces:
        yield make_refusal(USER_NAMESPACE, NOT_ALLOWED, "false")


def _unsupported_volume(volume: Mapping[str, Any]) -> Iterator[Refusal]:
    name = volume["name"]
    for kind, text in UNSUPPORTED_VOLUMES.items():
        if kind in volume:
            yield make_refusal(text, NOT_SUPPORTED, name, name=name)
    for source in (volume.get("projected") or {}).get("sources") or ():
        for kind, text in UNSUPPORTED_SOURCES.items():
            if kind in source:
                yield make_refusal(text, NOT_SUPPORTED, name, name=name)
        if not source:
            yield make_refusal(EMPTY_SOURCE, NOT_SUPPORTED, name, name=name)


def _node_volume(volume: Mapping[str, Any], policy: PodPolicy) -> Iterator[Refusal]:
    """Refuse volumes that nodes mount with their own credentials, because volume ids are not secret.

    Level baseline allows these volumes in a cluster with one owner, but these nodes serve many tenants. The level
    itself refuses host paths.
    """
    if policy.pod_security == "privileged":
        return
    for kind in volume.keys() - POD_VOLUMES - {"name", "hostPath"}:
        yield make_refusal(NODE_VOLUME, NOT_ALLOWED, volume["name"], name=volume["name"], kind=kind)


def device_refusals(containers: Sequence[Mapping[str, Any]], policy: PodPolicy) -> Iterator[Refusal]:
    """Yield refusals of variables by which a container would get devices that it did not request."""
    if policy.pod_security == "privileged":
        return
    for find, text in (
        (device_variables.set_variables, DEVICE_VARIABLE),
        (device_variables.splitting_prefixes, DEVICE_PREFIX),
    ):
        for container in containers:
            if (name := next(find(container), None)) is not None:
                yield make_refusal(text, NOT_ALLOWED, name, container=container["name"], name=name)


def _disallowed_fields(spec: Mapping[str, Any], policy: PodPolicy) -> Iterator[Refusal]:
    runtime_class = spec.get("runtimeClassName")
    allowed = allowed_runtime_classes(policy)
    if runtime_class and not _is_allowed(allowed, runtime_class):
        text = RUNTIME_CLASS
        yield make_refusal(text, NOT_ALLOWED, runtime_class, name=runtime_class, allowed=render_names(allowed))
    for secret in spec.get("imagePullSecrets") or ():
        name = secret.get("name") or ""
        if name and not _is_allowed(policy.image_pull_secrets, name):
            allowed = policy.image_pull_secrets
            yield make_refusal(IMAGE_PULL, NOT_ALLOWED, name, name=name, allowed=render_names(allowed))
    for toleration in spec.get("tolerations") or ():
        key = toleration.get("key") or ""
        if GROUP in key and is_reserved(key):
            yield make_refusal(TOLERATION, RESERVED, key, key=key)


def allowed_runtime_classes(policy: PodPolicy) -> tuple[str, ...]:
    """Return the runtime classes that a policy allows. `*` allows all."""
    return (*policy.runtime_classes, *policy.runtime_class_names)


def _is_allowed(names: tuple[str, ...], name: str) -> bool:
    return name in names or ANY in names


def reserved_references(pod: Object) -> Iterator[Refusal]:
    """Yield refusals of references to names that the platform uses in compute namespaces."""
    if COMPUTE_ROOT_CA in find_references(pod).config_maps:
        yield make_refusal(ROOT_CA, RESERVED, COMPUTE_ROOT_CA)


def _affinity_conflict(spec: Mapping[str, Any], pool: PoolContext) -> Iterator[Refusal]:
    found = NodeTerms(pool, scheduled=False).find_conflict(spec)
    if found is not None:
        field, value = found
        message = (
            f"node {pool.node_name} does not meet the pod's node affinity or selector; "
            "remove nodeName to let the scheduler choose"
        )
        yield Refusal(field=field, value=value, rule=NODE_AFFINITY, message=message)
