"""Changes of a running pod through subresources: ephemeral containers, and in-place resize."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from vkgateway.api.objects import Object
from vkgateway.api.quantity import parse_quantity
from vkgateway.api.types import PodSecurity
from vkgateway.kinds.pods.policy import security
from vkgateway.kinds.pods.policy.feature_gates import FeatureGatedField, ephemeral_fields
from vkgateway.kinds.pods.translation.containers import PodValues, forward_container

Subresource = Literal["ephemeralcontainers", "resize"]

_CONTAINER_KINDS: Final = ("initContainers", "containers")


def new_ephemeral_containers(tenant_pod: Object, compute_pod: Object) -> list[Object]:
    """Return the tenant's ephemeral containers that the compute pod lacks. Existing ones are immutable."""
    wanted = tenant_pod["spec"].get("ephemeralContainers")
    if not wanted:
        return []
    current = {container["name"] for container in compute_pod["spec"].get("ephemeralContainers") or ()}
    return [container for container in wanted if container["name"] not in current]


def ephemeral_violations(tenant_pod: Object, container: Object, *, level: PodSecurity) -> list[security.Violation]:
    """Return the rules of a pod security level that an ephemeral container breaks in its pod."""
    spec = {**tenant_pod["spec"], "initContainers": [], "containers": [], "ephemeralContainers": [container]}
    return security.find_violations({**tenant_pod, "spec": spec}, level=level)


def ephemeral_patch(added: Sequence[Object], values: PodValues) -> Object:
    """Return the strategic merge patch for the subresource `ephemeralcontainers`."""
    return {"spec": {"ephemeralContainers": [forward_container(container, values) for container in added]}}


def drop_lost_containers(patch: Object, dropped_fields: Collection[FeatureGatedField]) -> Object | None:
    """Return a subresource's patch without ephemeral containers that would lose one of `dropped_fields`.

    The result is None if no container is left, and for a patch of `resize`.
    """
    added = patch["spec"].get("ephemeralContainers") or ()
    kept = [container for container in added if not any(one in dropped_fields for one in ephemeral_fields(container))]
    return {**patch, "spec": {"ephemeralContainers": kept}} if kept else None


def split_patch(patch: Object) -> list[Object]:
    """Return one patch for each ephemeral container of a patch, empty for a patch of `resize`."""
    added = patch["spec"].get("ephemeralContainers") or ()
    return [{**patch, "spec": {"ephemeralContainers": [container]}} for container in added]


def resize_patch(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> Object | None:
    """Return the strategic merge patch for the subresource `resize`, or None if no amount differs.

    Amounts that the compute cluster added, for instance by a LimitRange, are kept: API servers allow no removal.
    """
    spec: Object = {}
    for kind in _CONTAINER_KINDS:
        resized = list(_resized_containers(wanted.get(kind) or (), actual.get(kind) or ()))
        if resized:
            spec[kind] = resized
    whole = _changed_amounts(wanted.get("resources"), actual.get("resources"))
    if whole:
        spec["resources"] = whole
    return {"spec": spec} if spec else None


def _resized_containers(wanted: Sequence[Object], actual: Sequence[Object]) -> Iterator[Object]:
    current = {container["name"]: container for container in actual}
    for container in wanted:
        other = current.get(container["name"])
        amounts = _changed_amounts(container.get("resources"), other.get("resources")) if other is not None else {}
        if other is None or not amounts:
            continue
        made = {"name": container["name"], "resources": amounts}
        policy = container.get("resizePolicy")
        if policy and other.get("resizePolicy") not in (None, policy):
            made["resizePolicy"] = policy
        yield made


def _changed_amounts(wanted: Mapping[str, Any] | None, actual: Mapping[str, Any] | None) -> Object:
    """Return the tenant's requests and limits whose quantity differs in the compute pod."""
    made: Object = {}
    for kind in ("requests", "limits"):
        named = (wanted or {}).get(kind)
        if not named:
            continue
        current = (actual or {}).get(kind) or {}
        changed = {name: quantity for name, quantity in named.items() if _quantity_differs(quantity, current.get(name))}
        if changed:
            made[kind] = changed
    return made


def _quantity_differs(quantity: Any, other: Any) -> bool:
    return quantity != other and (other is None or parse_quantity(quantity) != parse_quantity(other))
