"""Messages about refused pods for the tenant, with field, value and remedy, shared by Python and CEL.

A text starts with the field. Names in braces are placeholders. `policy` fills them in for pods that the gateway checks,
`admission` turns the texts into expressions of the tenant's admission policy.
"""

from collections.abc import Iterable, Mapping
from typing import Final

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
