"""Allowed changes of an existing compute pod: the patches that apply them, and changes that are not supported."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vkgateway.api.names import is_forbidden_annotation, is_reserved, is_reserved_annotation, token_secret_name
from vkgateway.api.objects import Object
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.metadata import (
    copied_keys,
    forward_annotations,
    forward_labels,
    is_tenant_label,
    unchanged_images,
)
from vkgateway.kinds.pods.policy.rules import (
    NOT_ALLOWED,
    RESERVED,
    Refusal,
    device_refusals,
    reserved_references,
)
from vkgateway.kinds.pods.translation import downward_api
from vkgateway.kinds.pods.translation.containers import pod_values
from vkgateway.kinds.pods.translation.subresources import (
    Subresource,
    ephemeral_patch,
    ephemeral_violations,
    new_ephemeral_containers,
    resize_patch,
)
from vkgateway.kinds.pods.translation.to_compute import forward_tolerations
from vkgateway.kinds.size_budget import OversizeError

_CONTAINER_KINDS: Final = ("initContainers", "containers")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDiff:
    """Strategic merge patches for the compute pod and its subresources, and changes that cannot be forwarded.

    `patch` is None if there is nothing to change. `waiting_containers` holds the reasons of ephemeral containers that
    do not start.
    """

    patch: Object | None = None
    subresources: Mapping[Subresource, Object] = field(default_factory=dict)
    unsupported: tuple[Refusal, ...] = ()
    waiting_containers: Mapping[str, str] = field(default_factory=dict)


def diff_pods(tenant_pod: Object, compute_pod: Object, *, tenant: TenantContext, pool: PoolContext) -> PodDiff:
    """Return the differences between tenant pod and compute pod that a running pod may change.

    Labels, annotations (and what downward API volumes read of both), images, activeDeadlineSeconds, added tolerations
    and their seconds, added ephemeral containers and resource amounts are forwarded. Changes by components of the
    compute cluster are kept.
    """
    patch: Object = {}
    metadata = _diff_metadata(tenant_pod, compute_pod, tenant=tenant, pool=pool)
    if metadata:
        patch["metadata"] = metadata
    forwarded_images = unchanged_images(tenant_pod, compute_pod["metadata"].get("annotations") or {})
    spec = _diff_specs(tenant_pod["spec"], compute_pod["spec"], pool, forwarded_images=forwarded_images)
    if spec:
        patch["spec"] = spec
    unsupported = _reserved_keys(tenant_pod["metadata"])
    subresources: dict[Subresource, Object] = {}
    added, refused = _check_ephemeral(tenant_pod, compute_pod, tenant)
    if added:
        metadata = tenant_pod["metadata"]
        secret = token_secret_name(metadata["name"], metadata["uid"])
        values = pod_values(tenant_pod, tenant=tenant, node_name=pool.node_name, token_secret=secret)
        try:
            subresources["ephemeralcontainers"] = ephemeral_patch(added, values)
        except OversizeError as error:
            refused += [_ephemeral_refusal(container["name"], "", NOT_ALLOWED, str(error)) for container in added]
    resize = resize_patch(tenant_pod["spec"], compute_pod["spec"])
    if resize is not None:
        subresources["resize"] = resize
    return PodDiff(
        patch=patch or None,
        subresources=subresources,
        unsupported=(*unsupported, *(refusal for _, refusal in refused)),
        waiting_containers={name: refusal.message for name, refusal in reversed(refused)},
    )


def without_resize(changes: PodDiff) -> PodDiff:
    """Return the changes without those of resources, if the tenant's amounts were already forwarded."""
    left = dict(changes.subresources)
    left.pop("resize", None)
    return replace(changes, subresources=left)


def _diff_metadata(tenant_pod: Object, compute_pod: Object, *, tenant: TenantContext, pool: PoolContext) -> Object:
    compute_metadata = compute_pod["metadata"]
    labels: Mapping[str, str] = compute_metadata.get("labels") or {}
    annotations: Mapping[str, str] = compute_metadata.get("annotations") or {}
    derived = downward_api.derived_annotations(tenant_pod, tenant_only=tenant.tenant_only_annotations)
    wanted_labels = forward_labels(tenant_pod["metadata"], tenant=tenant, pool=pool)
    wanted_annotations = forward_annotations(tenant_pod, tenant=tenant, labels=wanted_labels, derived=derived)
    copied_labels, copied_annotations = copied_keys(annotations)
    changes = {
        "labels": _diff_maps(wanted_labels, labels, copied_labels, is_tenants=is_tenant_label),
        "annotations": _diff_maps(
            wanted_annotations,
            annotations,
            copied_annotations,
            is_tenants=lambda key: not is_reserved_annotation(key),
        ),
    }
    return {kind: change for kind, change in changes.items() if change}


def _diff_maps(
    wanted: Mapping[str, str], actual: Mapping[str, str], copied: set[str], *, is_tenants: Callable[[str], bool]
) -> dict[str, str | None]:
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if actual.get(key) != value}
    for key in copied:
        if key in actual and key not in wanted and is_tenants(key):
            changes[key] = None
    return changes


def _diff_specs(
    wanted: Mapping[str, Any], actual: Mapping[str, Any], pool: PoolContext, *, forwarded_images: Collection[str]
) -> Object:
    """Return the patch of the spec.

    The current images of `forwarded_images`, names of containers, were forwarded before.
    """
    changes: Object = {}
    for kind in _CONTAINER_KINDS:
        images = {container["name"]: container.get("image") for container in actual.get(kind) or ()}
        differing = [
            {"name": container["name"], "image": container["image"]}
            for container in wanted.get(kind) or ()
            if container["name"] in images
            and container["name"] not in forwarded_images
            and container.get("image") not in (None, images[container["name"]])
        ]
        if differing:
            changes[kind] = differing
    deadline = wanted.get("activeDeadlineSeconds")
    if deadline is not None and deadline != actual.get("activeDeadlineSeconds"):
        changes["activeDeadlineSeconds"] = deadline
    current = actual.get("tolerations") or []
    tolerations = _merge_tolerations(forward_tolerations(wanted.get("tolerations"), pool), current)
    if tolerations != current:
        changes["tolerations"] = tolerations
    return changes


def _merge_tolerations(wanted: Sequence[Object], current: Sequence[Object]) -> list[Object]:
    """Return the current tolerations plus the added ones. For an existing one, only its seconds may change."""
    made = list(current)
    for entry in wanted:
        if entry in made:
            continue
        same = [old for old in made if old not in wanted and _drop_seconds(old) == _drop_seconds(entry)]
        if same:
            made[made.index(same[0])] = entry
        else:
            made.append(entry)
    return made


def _drop_seconds(toleration: Object) -> Object:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _reserved_keys(metadata: Mapping[str, Any]) -> list[Refusal]:
    return [
        Refusal(
            field=f"metadata.{kind}[{key}]",
            value=value,
            rule=RESERVED,
            message=f"{kind[:-1]} {key} is reserved for the platform and has no effect; remove it",
        )
        for kind, is_refused in (("labels", is_reserved), ("annotations", is_forbidden_annotation))
        for key, value in (metadata.get(kind) or {}).items()
        if is_refused(key)
    ]


def _check_ephemeral(
    tenant_pod: Object, compute_pod: Object, tenant: TenantContext
) -> tuple[list[Object], list[tuple[str, Refusal]]]:
    """Return the new ephemeral containers that the policy allows, and the names of others with their refusals."""
    allowed: list[Object] = []
    refused: list[tuple[str, Refusal]] = []
    for container in new_ephemeral_containers(tenant_pod, compute_pod):
        name = container["name"]
        alone = {"metadata": tenant_pod["metadata"], "spec": {"ephemeralContainers": [container]}}
        # kubectl's default profile (general) requests more than level baseline allows.
        remedy = f"; use `kubectl debug --profile={tenant.pod_security}`"
        broken = [
            *(
                _ephemeral_refusal(name, one.value, one.rule, one.message + remedy)
                for one in ephemeral_violations(tenant_pod, container, level=tenant.pod_security)
            ),
            *(
                _ephemeral_refusal(name, one.value, one.rule, one.message)
                for one in (*reserved_references(alone), *device_refusals([container], tenant))
            ),
        ]
        if not broken:
            allowed.append(container)
        refused += broken
    return allowed, refused


def _ephemeral_refusal(name: str, value: str, rule: str, reason: str) -> tuple[str, Refusal]:
    message = f"ephemeral container {name} does not start: {reason}"
    return name, Refusal(field=f"spec.ephemeralContainers[{name}]", value=value, rule=rule, message=message)
