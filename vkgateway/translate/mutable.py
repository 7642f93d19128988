"""What may change in a pod that already stands below: the patch that makes it so, and what cannot be done yet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.model.names import is_forbidden_annotation, is_reserved, is_reserved_annotation
from vkgateway.model.objects import Object
from vkgateway.model.quantity import parse
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.downward import ANNOTATIONS_ANNOTATION, LABELS_ANNOTATION
from vkgateway.translate.metadata import copied_keys, forward_annotations, forward_labels
from vkgateway.translate.placement import forward_tolerations
from vkgateway.translate.policy import NOT_SUPPORTED, RESERVED, Refusal

_DERIVED: Final = (LABELS_ANNOTATION, ANNOTATIONS_ANNOTATION)
_CONTAINER_KINDS: Final = ("initContainers", "containers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """A strategic merge patch for the compute pod (None: nothing to do), and changes above that stay above."""

    patch: Object | None
    unsupported: tuple[Refusal, ...]


def spec_changes(tenant_pod: Object, compute_pod: Object, *, tenant: TenantContext, pool: PoolContext) -> Changes:
    """Compare what may change of a running pod, whole tenant pod against whole compute pod.

    Forwarded are labels, annotations (and what downward API volumes read of both), images, activeDeadlineSeconds
    and added tolerations. What others put on the compute pod below stays there.
    """
    patch: Object = {}
    metadata = _metadata_changes(tenant_pod, compute_pod, tenant=tenant, pool=pool)
    if metadata:
        patch["metadata"] = metadata
    spec = _spec_changes(tenant_pod["spec"], compute_pod["spec"], pool)
    if spec:
        patch["spec"] = spec
    return Changes(patch=patch or None, unsupported=tuple(_unsupported(tenant_pod, compute_pod)))


def _metadata_changes(tenant_pod: Object, compute_pod: Object, *, tenant: TenantContext, pool: PoolContext) -> Object:
    below = compute_pod["metadata"]
    labels: Mapping[str, str] = below.get("labels") or {}
    annotations: Mapping[str, str] = below.get("annotations") or {}
    derived = [name for name in _DERIVED if name in annotations]
    wanted_labels = forward_labels(tenant_pod["metadata"], tenant=tenant, pool=pool)
    wanted_annotations = forward_annotations(tenant_pod, tenant=tenant, derived=derived)
    copied_labels, copied_annotations = copied_keys(annotations)
    changes = {
        "labels": _map_changes(wanted_labels, labels, copied_labels, is_ours=is_reserved),
        "annotations": _map_changes(
            wanted_annotations, annotations, copied_annotations, is_ours=is_reserved_annotation
        ),
    }
    return {kind: change for kind, change in changes.items() if change}


def _map_changes(
    wanted: Mapping[str, str], actual: Mapping[str, str], copied: set[str], *, is_ours: Callable[[str], bool]
) -> dict[str, str | None]:
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if actual.get(key) != value}
    for key in copied:
        if key in actual and key not in wanted and not is_ours(key):
            changes[key] = None
    return changes


def _spec_changes(wanted: Mapping[str, Any], actual: Mapping[str, Any], pool: PoolContext) -> Object:
    changes: Object = {}
    for kind in _CONTAINER_KINDS:
        images = {container["name"]: container.get("image") for container in actual.get(kind) or ()}
        differing = [
            {"name": container["name"], "image": container["image"]}
            for container in wanted.get(kind) or ()
            if container["name"] in images and container.get("image") not in (None, images[container["name"]])
        ]
        if differing:
            changes[kind] = differing
    deadline = wanted.get("activeDeadlineSeconds")
    if deadline is not None and deadline != actual.get("activeDeadlineSeconds"):
        changes["activeDeadlineSeconds"] = deadline
    standing = actual.get("tolerations") or []
    added = [entry for entry in forward_tolerations(wanted.get("tolerations"), pool) if entry not in standing]
    if added:
        changes["tolerations"] = [*standing, *added]
    return changes


def _unsupported(tenant_pod: Object, compute_pod: Object) -> list[Refusal]:
    wanted, actual = tenant_pod["spec"], compute_pod["spec"]
    found = [
        Refusal(
            field=f"metadata.{kind}[{key}]",
            value=value,
            rule=RESERVED,
            message=f"{kind[:-1]} {key} is reserved to the platform; it has no effect",
        )
        for kind, is_refused in (("labels", is_reserved), ("annotations", is_forbidden_annotation))
        for key, value in (tenant_pod["metadata"].get(kind) or {}).items()
        if is_refused(key)
    ]
    if wanted.get("ephemeralContainers"):
        names = ", ".join(container["name"] for container in wanted["ephemeralContainers"])
        message = f"ephemeral containers are not supported yet; {names} will not start"
        found.append(Refusal(field="spec.ephemeralContainers", value=names, rule=NOT_SUPPORTED, message=message))
    for kind in _CONTAINER_KINDS:
        found += _resized(wanted.get(kind) or (), actual.get(kind) or (), kind)
    if _differs(wanted.get("resources"), actual.get("resources")):
        found.append(_resize("spec.resources", tenant_pod["metadata"]["name"]))
    return found


def _resized(wanted: Any, actual: Any, kind: str) -> list[Refusal]:
    standing = {container["name"]: container.get("resources") for container in actual}
    return [
        _resize(f"spec.{kind}[{container['name']}].resources", container["name"])
        for container in wanted
        if container["name"] in standing and _differs(container.get("resources"), standing[container["name"]])
    ]


def _resize(field: str, name: str) -> Refusal:
    message = f"resizing a running pod is not supported yet; {name} keeps the resources that it started with"
    return Refusal(field=field, value=name, rule=NOT_SUPPORTED, message=message)


def _differs(wanted: Mapping[str, Any] | None, actual: Mapping[str, Any] | None) -> bool:
    """Whether a resource that the tenant names has another quantity below; what was added there does not count."""
    for kind in ("requests", "limits"):
        standing = (actual or {}).get(kind) or {}
        for name, quantity in ((wanted or {}).get(kind) or {}).items():
            other = standing.get(name)
            if other != quantity and (other is None or parse(other) != parse(quantity)):
                return True
    return False
