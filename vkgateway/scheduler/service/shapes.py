"""The shape of a tenant pod: what its compute pod will request of a node."""

from collections.abc import Mapping, Sequence
from typing import Any

from vkgateway.api.objects import Object
from vkgateway.api.requests import container_requests, has_equal_limits, is_extended, pod_requests
from vkgateway.kinds.pods.translation.node_terms import real_node_terms
from vkgateway.kinds.pods.translation.to_compute import is_scheduled, tenant_tolerations
from vkgateway.scheduler.core.snapshot import Requirement, Shape, Toleration


def shape_of(
    pod: Object,
    *,
    carried: frozenset[str],
    nodes: Mapping[str, Mapping[str, str]] | None = None,
    places: Sequence[Sequence[Object]] = (),
) -> Shape:
    """Return the shape of a tenant pod, as `forward_pod` will forward it.

    `carried` are the label keys of the real nodes of its pools. `nodes` are the known labels of the virtual nodes by
    name: alternatives of its node affinity that no virtual node matches are left out. A pod without a virtual node
    counts as scheduled, since it will be.

    The overhead is the tenant's; that of the compute cluster may differ. `places` are the node selector terms of each
    volume, of which one must hold. The pool's own tolerations and selector are left out, as they hold for all nodes of
    the pool.
    """
    spec = pod.get("spec") or {}
    scheduled = not spec.get("nodeName") or is_scheduled(pod)
    terms = real_node_terms(spec, carried=carried, scheduled=scheduled, nodes=nodes or {})
    for place in places:
        reached = [option.get("matchExpressions") or [] for option in place]
        terms = [[*term, *option] for term in terms or [[]] for option in reached]
    return Shape(
        requests=tuple(sorted((name, amount) for name, amount in pod_requests(pod).items() if amount)),
        terms=tuple(dict.fromkeys(_decode_term(term) for term in terms)),
        tolerations=tuple(
            dict.fromkeys(decode_toleration(entry) for entry in tenant_tolerations(spec.get("tolerations")))
        ),
        images=frozenset(_image_names(spec)),
        parts=_container_parts(spec),
    )


def _container_parts(spec: Mapping[str, Any]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return the parts that a kubelet allocates to single containers; nothing if one container requests all devices.

    Init containers count only if one requests more of a resource than each container does: they release it.
    """
    containers, starting = list(spec.get("containers") or ()), list(spec.get("initContainers") or ())
    exact = all(has_equal_limits(container) for container in (*containers, *starting))
    running = [*(each for each in starting if each.get("restartPolicy") == "Always"), *containers]
    parts = [_container_part(container, exact=exact) for container in running]
    for container in starting:
        part = _container_part(container, exact=exact)
        if any(all(dict(other).get(name, 0) < amount for other in parts) for name, amount in part):
            parts.insert(0, part)
    found = tuple(part for part in parts if part)
    return () if len(found) < 2 and all(is_extended(name) for part in found for name, _ in part) else found


def _container_part(container: Mapping[str, Any], *, exact: bool) -> tuple[tuple[str, int], ...]:
    """Return a container's devices; for pods of QoS class Guaranteed also memory, and whole CPUs."""
    asked = container_requests(container)
    shared = {"cpu"} if asked.get("cpu", 0) % 1000 else set()
    return tuple(
        sorted(
            (name, amount)
            for name, amount in asked.items()
            if amount and (is_extended(name) or (exact and name not in shared and name != "ephemeral-storage"))
        )
    )


def _decode_term(requirements: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple(
        dict.fromkeys(
            Requirement(key=entry["key"], operator=entry["operator"], values=tuple(entry.get("values") or ()))
            for entry in requirements
        )
    )


def decode_toleration(entry: Mapping[str, Any]) -> Toleration:
    """Decode a toleration from JSON."""
    return Toleration(
        key=entry.get("key") or "",
        operator=entry.get("operator") or "Equal",
        value=entry.get("value") or "",
        effect=entry.get("effect") or "",
    )


def _image_names(spec: Mapping[str, Any]) -> set[str]:
    """Return image names as nodes report them: without a tag or a digest, the tag is `latest`, as in kube-scheduler."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    images = (container["image"] for container in containers if container.get("image"))
    return {image if ":" in image.rpartition("/")[2] else f"{image}:latest" for image in images}
