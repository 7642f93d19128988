"""Names, labels, annotations and finalizers that vkgateway gives to things, and the rules they obey."""

import hashlib
import re
from typing import Final

from vkgateway.model.errors import InputError

GROUP: Final = "vkgateway.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
RESERVED_PREFIX: Final = f"{GROUP}/"
HOLLOW_DOMAIN: Final = f"kwok.{GROUP}"
"""Annotations of this domain tell hollow nodes what to do with a pod; they are for tenants to set."""

TENANT_LABEL: Final = "vkgateway.io/tenant"
POOL_LABEL: Final = "vkgateway.io/pool"
COMPUTE_CLUSTER_LABEL: Final = "vkgateway.io/compute-cluster"
VIRTUAL_NODE_TYPE: Final = "virtual-kubelet"

NAMESPACE_ANNOTATION: Final = "vkgateway.io/namespace"
NAME_ANNOTATION: Final = "vkgateway.io/name"
UID_ANNOTATION: Final = "vkgateway.io/uid"
FENCE_ANNOTATION: Final = "vkgateway.io/fence"
"""On a compute namespace: a digest of what was made in it before any pod."""
CLUSTER_IP_ANNOTATION: Final = "vkgateway.io/cluster-ip"
"""On a compute Service: the cluster address that the tenant's Service had when it was made."""
GANGS_DONE_ANNOTATION: Final = "vkgateway.io/gangs-done"
"""On a compute namespace: which pods ended well of gangs that have others, for a gateway that is started anew."""

MIRROR_FINALIZER: Final = "vkgateway.io/mirror"
WRITABLE_ANNOTATION: Final = "vkgateway.io/writable"
"""On a Tenant: its API server may write, however full the datastore is."""
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
"""What tenants say of their gangs, in annotations with these very keys: see `is_reserved_annotation`."""

BORROWED_ANNOTATION: Final = "vkgateway.io/borrowed"
"""On compute pods: `true` where the pod runs outside its tenant's guarantee, and may be evicted for others."""
COMPUTE_NODE_ANNOTATION: Final = "vkgateway.io/compute-node"
"""On compute pods: the node that the arbiter placed the pod on, and that it requires."""
EVICTION_DEADLINE_ANNOTATION: Final = "vkgateway.io/eviction-deadline"
"""On a pod that is told to go, above and below: when it will be deleted (RFC 3339)."""
GATEWAY_ANNOTATIONS: Final = frozenset({EVICTION_DEADLINE_ANNOTATION})
"""What the gateway itself writes on tenants' pods, for workloads to read. Set by anybody else, it has no effect."""

TENANT_ROOT_CA: Final = "kube-root-ca.crt"
"""ConfigMap with the tenant's own certificate authority, one in each namespace of the tenant."""
COMPUTE_ROOT_CA: Final = "vkgateway-root-ca.crt"
"""What `TENANT_ROOT_CA` is called below, where the compute cluster publishes its own under the first name."""

TENANT_NAME_MAX: Final = 32
NAMESPACE_MAX: Final = 63
LABEL_VALUE_MAX: Final = 63
OBJECT_NAME_MAX: Final = 253

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NO_DNS_LABEL = re.compile(r"[^a-z0-9]+")
_HASH_LENGTH = 10
_TOKEN_SUFFIX_LENGTH = len("-01234567-token")


def is_reserved(key: str) -> bool:
    """Tell whether a label or annotation key is vkgateway's own, which no tenant may set."""
    prefix = key.partition("/")[0] if "/" in key else ""
    return prefix != HOLLOW_DOMAIN and (prefix == GROUP or prefix.endswith("." + GROUP))


def is_reserved_annotation(key: str) -> bool:
    """Tell whether an annotation is vkgateway's own: as `is_reserved`, but for those that tell of a tenant's gang.

    These keys, letter by letter, are for tenants to set, as annotations only: as labels they stay reserved.
    """
    return key not in GANG_ANNOTATIONS and is_reserved(key)


def is_forbidden_annotation(key: str) -> bool:
    """Tell whether an annotation on a tenant's pod is reserved, and not one that the gateway writes there itself."""
    return is_reserved_annotation(key) and key not in GATEWAY_ANNOTATIONS


def validate_tenant_name(name: str) -> None:
    """Check a tenant's name: a DNS label of 1 to 32 characters, starting with a letter, without `--`.

    Raises:
        InputError: names the rule that is broken.
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
        InputError: names `what` and the value.
    """
    if len(value) > NAMESPACE_MAX or not _DNS_LABEL.fullmatch(value):
        raise InputError(
            f"{what} {value!r} is not a DNS label",
            hint="use at most 63 lower-case letters, digits and inner dashes",
        )


def compute_namespace(tenant: str, namespace: str) -> str:
    """Name of the compute namespace that stands for a tenant's namespace.

    It is `T--N`. Past 63 characters it is the first 52, a dash and 10 hexadecimal digits of the SHA-256 of
    the full name. Tenant names hold no `--` and end within the first 32 characters, so none is shared.
    """
    name = f"{tenant}--{namespace}"
    if len(name) <= NAMESPACE_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{name[: NAMESPACE_MAX - _HASH_LENGTH - 1]}-{digest}"


def virtual_node_name(pool: str, compute_cluster: str, value: str = "") -> str:
    """Return the name of a tenant's virtual node: `<pool>.<compute cluster>`.

    A pool that is divided by a node label has a node per `value` of it: `<pool>.<value>.<compute cluster>`. Characters
    that a node name must not hold become dashes. Where the name is changed by that, or is longer than a label value may
    be, its end is replaced by 10 hexadecimal digits of the SHA-256 of the full name.
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
    """Name of the compute Secret with a pod's tokens: `<pod>-<8 hex of sha256(uid)>-token`."""
    digest = hashlib.sha256(uid.encode()).hexdigest()[:8]
    stem = pod[: OBJECT_NAME_MAX - _TOKEN_SUFFIX_LENGTH].rstrip("-.")
    return f"{stem}-{digest}-token"


def token_key(volume: str, index: int) -> str:
    """Key in the token Secret for the projected token source at `index` of a pod's volume."""
    return f"{volume}.{index}"


def tenant_secret_name(tenant: str) -> str:
    """Name of the Secret in the system namespace that holds a tenant's certificates and keys."""
    return f"tenant-{tenant}"


def tenant_etcd_prefix(tenant: str) -> str:
    """Key prefix of a tenant in the shared etcd, without the closing slash."""
    return f"/tenants/{tenant}"
