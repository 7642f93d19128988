"""Names, labels, annotations and finalizers of vkgateway, and their validation rules."""

import hashlib
import ipaddress
import re
from typing import Any, Final

from vkgateway.api.errors import InputError

GROUP: Final = "vkgateway.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
RESERVED_PREFIX: Final = f"{GROUP}/"
HOLLOW_DOMAIN: Final = f"kwok.{GROUP}"
"""Domain of annotations that control how hollow nodes simulate a pod. Tenants may set these annotations."""

TENANT_LABEL: Final = "vkgateway.io/tenant"
CONTROL_PLANE_LABEL: Final = "vkgateway.io/control-plane"
"""On a namespace of the management cluster and its objects: the tenant whose control plane they are.

It differs from the label of forwarded objects, which selects the tenant's compute pods and their network policies.
"""
GATEWAY_LABEL: Final = "vkgateway.io/gateway"
"""On the owner record of a tenant in a compute cluster: the ID of the gateway to which the tenant's objects belong."""
POOL_LABEL: Final = "vkgateway.io/pool"
COMPUTE_CLUSTER_LABEL: Final = "vkgateway.io/compute-cluster"
VIRTUAL_NODE_TYPE: Final = "virtual-kubelet"

NAMESPACE_ANNOTATION: Final = "vkgateway.io/namespace"
NAME_ANNOTATION: Final = "vkgateway.io/name"
UID_ANNOTATION: Final = "vkgateway.io/uid"
FENCE_ANNOTATION: Final = "vkgateway.io/fence"
"""On a compute namespace: a digest of the objects that the gateway created in the namespace before any pod."""
CLUSTER_IP_ANNOTATION: Final = "vkgateway.io/cluster-ip"
"""On a compute Service: the cluster IP of the tenant's Service when the gateway created the compute Service."""
GANGS_DONE_ANNOTATION: Final = "vkgateway.io/gangs-done"
"""On a compute namespace: the succeeded pods of gangs with other pods. A restarted gateway reads them."""

MIRROR_FINALIZER: Final = "vkgateway.io/mirror"
WRITABLE_ANNOTATION: Final = "vkgateway.io/writable"
"""On a Tenant: the tenant's API server may write regardless of how full the datastore is."""
TENANT_FINALIZER: Final = "vkgateway.io/tenant"
ADMISSION_GATE: Final = "vkgateway.io/admission"

FIELD_MANAGER: Final = "vkgateway"
SYSTEM_NAMESPACE: Final = "vkgateway-system"
POD_SERVICE_ACCOUNT: Final = "vkgateway-pod"

GUARANTEED_CLASS: Final = "vkgateway-guaranteed"
LOW_CLASS: Final = "vkgateway-low"

GANG_ANNOTATION: Final = "vkgateway.io/gang"
GANG_MIN_ANNOTATION: Final = "vkgateway.io/gang-min"
GANG_SIZE_ANNOTATION: Final = "vkgateway.io/gang-size"
GANG_MAX_ANNOTATION: Final = "vkgateway.io/gang-elastic-max"
GANG_RUN_LIMIT_ANNOTATION: Final = "vkgateway.io/gang-run-limit"
GANG_CHECKPOINT_ANNOTATION: Final = "vkgateway.io/gang-checkpoint"
GANG_RESTART_COST_ANNOTATION: Final = "vkgateway.io/gang-restart-cost"
GANG_ANNOTATIONS: Final = frozenset(
    {
        GANG_ANNOTATION,
        GANG_MIN_ANNOTATION,
        GANG_SIZE_ANNOTATION,
        GANG_MAX_ANNOTATION,
        GANG_RUN_LIMIT_ANNOTATION,
        GANG_CHECKPOINT_ANNOTATION,
        GANG_RESTART_COST_ANNOTATION,
    }
)
"""Annotations by which tenants describe their gangs. See `is_reserved_annotation`."""

SCHEDULING_MODE: Final = "vkgateway.io/scheduling-mode"
"""Label of the objects that the gateway creates for the scheduler of a pool, and annotation of the compute pods that an
external scheduler binds: the mode."""
BORROWED_ANNOTATION: Final = "vkgateway.io/borrowed"
"""On compute pods: `true` if the pod runs outside its tenant's guarantee and may be evicted by reclaim."""
COMPUTE_NODE_ANNOTATION: Final = "vkgateway.io/compute-node"
"""On compute pods: the node that the arbiter selected and that the pod's node affinity requires."""
EVICTION_DEADLINE_ANNOTATION: Final = "vkgateway.io/eviction-deadline"
"""On the tenant pod and the compute pod after an eviction notice: the time of the deletion (RFC 3339)."""
GATEWAY_ANNOTATIONS: Final = frozenset({EVICTION_DEADLINE_ANNOTATION})
"""Annotations that the gateway writes on tenant pods, for workloads to read. Values from other clients have no
effect."""

TENANT_ROOT_CA: Final = "kube-root-ca.crt"
"""ConfigMap with the tenant's certificate authority, one in each namespace of the tenant."""
COMPUTE_ROOT_CA: Final = "vkgateway-root-ca.crt"
"""Name of the copy of `TENANT_ROOT_CA` in compute clusters, which publish their own authority as `TENANT_ROOT_CA`."""

TENANT_NAME_MAX: Final = 32
NAMESPACE_MAX: Final = 63
LABEL_VALUE_MAX: Final = 63
OBJECT_NAME_MAX: Final = 253

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NO_DNS_LABEL = re.compile(r"[^a-z0-9]+")
_HASH_LENGTH = 10
_TOKEN_SUFFIX_LENGTH = len("-01234567-token")


def is_reserved(key: str) -> bool:
    """Return whether a label or annotation key belongs to vkgateway, so that no tenant may set it."""
    prefix = key.partition("/")[0] if "/" in key else ""
    return prefix != HOLLOW_DOMAIN and (prefix == GROUP or prefix.endswith("." + GROUP))


def is_reserved_annotation(key: str) -> bool:
    """Return whether an annotation is reserved: like `is_reserved`, except for `GANG_ANNOTATIONS`.

    Tenants may set the gang keys as annotations. As labels, these keys stay reserved.
    """
    return key not in GANG_ANNOTATIONS and is_reserved(key)


def is_forbidden_annotation(key: str) -> bool:
    """Return whether an annotation on a tenant pod is reserved and not one that the gateway writes."""
    return is_reserved_annotation(key) and key not in GATEWAY_ANNOTATIONS


def validate_tenant_name(name: str) -> None:
    """Check a tenant's name: a DNS label of 1 to 32 characters, starting with a letter, without `--`.

    Raises:
        InputError: The name breaks a rule; the message says which.
    """
    problem = _tenant_name_problem(name)
    if problem:
        raise InputError(
            f"tenant name {name!r} {problem}",
            hint="use 1 to 32 lower-case letters, digits and single dashes, a letter first, like team-a",
        )


def _tenant_name_problem(name: str) -> str:
    rules = (
        (not name, "is empty"),
        (
            len(name) > TENANT_NAME_MAX,
            f"is {len(name)} characters long, at most {TENANT_NAME_MAX} are allowed",
        ),
        ("--" in name, "holds '--', which separates tenant from namespace in the compute cluster"),
        (name != name.lower(), "holds capital letters"),
        (name[:1].isdigit(), "starts with a digit"),
        (not _DNS_LABEL.fullmatch(name), "is not a DNS label"),
    )
    return next((problem for broken, problem in rules if broken), "")


def validate_dns_label(value: str, *, what: str) -> None:
    """Check that a value is a DNS label (RFC 1123: at most 63 of a-z, 0-9 and inner dashes).

    Raises:
        InputError: The value is not a DNS label; the message names `what` and the value.
    """
    if len(value) > NAMESPACE_MAX or not _DNS_LABEL.fullmatch(value):
        raise InputError(
            f"{what} {value!r} is not a DNS label",
            hint="use at most 63 lower-case letters, digits and inner dashes",
        )


def compute_namespace(tenant: str, namespace: str) -> str:
    """Return the name of a tenant namespace in compute clusters: `<tenant>--<namespace>`.

    A name over 63 characters becomes its first 52, a dash and 10 hexadecimal digits of the SHA-256 of the full name.
    Tenant names contain no `--` and have at most 32 characters, so no two tenants share a compute namespace.
    """
    name = f"{tenant}--{namespace}"
    if len(name) <= NAMESPACE_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: NAMESPACE_MAX - _HASH_LENGTH - 1]}-{digest}"


def is_ip_address(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_in_url(host: str) -> str:
    """Return a host name or IP address as it stands in a URL: an IPv6 address in brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host else host


def compute_metadata(tenant: str, namespace: str, name: str, uid: str) -> dict[str, Any]:
    """Return the metadata of the compute object of a tenant's object, which the annotations name.

    Labels and annotations of the tenant's object are left out: controllers of the compute cluster would act on them.
    """
    return {
        "name": name,
        "namespace": compute_namespace(tenant, namespace),
        "labels": {TENANT_LABEL: tenant},
        "annotations": {NAMESPACE_ANNOTATION: namespace, NAME_ANNOTATION: name, UID_ANNOTATION: uid},
    }


def virtual_node_name(pool: str, compute_cluster: str, value: str = "") -> str:
    """Return the name of a tenant's virtual node: `<pool>.<compute cluster>`.

    A pool that a node label divides has a virtual node per `value`: `<pool>.<value>.<compute cluster>`. Characters
    that are invalid in a node name become dashes. If that changes the name, or if the name exceeds the length of a
    label value, 10 hexadecimal digits of the SHA-256 of the full name replace its end.
    """
    if not value:
        return f"{pool}.{compute_cluster}"
    full = f"{pool}.{value}.{compute_cluster}"
    part = _NO_DNS_LABEL.sub("-", value.lower()).strip("-") or "value"
    name = f"{pool}.{part}.{compute_cluster}"
    if name == full and len(name) <= LABEL_VALUE_MAX:
        return name
    digest = hashlib.sha256(full.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: LABEL_VALUE_MAX - _HASH_LENGTH - 1].rstrip('-.')}-{digest}"


def token_secret_name(pod: str, uid: str) -> str:
    """Return the name of the compute Secret with a pod's tokens: `<pod>-<8 hex of sha256(uid)>-token`."""
    digest = hashlib.sha256(uid.encode()).hexdigest()[:8]
    stem = pod[: OBJECT_NAME_MAX - _TOKEN_SUFFIX_LENGTH].rstrip("-.")
    return f"{stem}-{digest}-token"


def token_key(volume: str, index: int) -> str:
    """Return the key in the token Secret of the projected token source at `index` of a pod's volume."""
    return f"{volume}.{index}"


def tenant_secret_name(tenant: str) -> str:
    """Return the name of the Secret in the system namespace with a tenant's certificates and keys."""
    return f"tenant-{tenant}"


def tenant_owner_name(tenant: str) -> str:
    """Return the name of the ConfigMap in the system namespace of a compute cluster that is a tenant's owner record."""
    return f"tenant-{tenant}"


def tenant_etcd_prefix(tenant: str) -> str:
    """Return a tenant's key prefix in the shared etcd, without the trailing slash."""
    return f"/tenants/{tenant}"
