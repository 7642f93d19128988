"""Resource requests of pods in whole thousandths, summed like the Kubernetes scheduler does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from vkgateway.api.quantity import Quantity, parse_quantity, render_quantity

MilliResources = dict[str, int]
"""Resource names to thousandths of a unit: `{"cpu": 500, "nvidia.com/gpu": 8000}`."""

_THOUSAND = Decimal(1000)
_NATIVE_DOMAIN: Final = "kubernetes.io"
_OTHER_PREFIXES: Final = ("requests.", "hugepages-")


def to_milli(resources: Mapping[str, Quantity]) -> MilliResources:
    """Return a resource list in thousandths, rounded up."""
    return {name: _parse_milli(quantity) for name, quantity in resources.items()}


def render_milli(resources: Mapping[str, int]) -> str:
    """Return a resource list for messages: `cpu 500m, memory 10Mi, nvidia.com/gpu 8`."""
    return ", ".join(
        f"{name} {render_quantity(Decimal(value) / _THOUSAND, binary=_is_byte_resource(name))}"
        for name, value in resources.items()
    )


def _is_byte_resource(name: str) -> bool:
    return name in ("memory", "ephemeral-storage") or name.startswith("hugepages-")


def pod_requests(pod: Mapping[str, Any]) -> MilliResources:
    """Return a pod's requests: the maximum of all containers' sum and each init container, plus overhead and one pod.

    Sidecars (init containers with `restartPolicy: Always`) add to the containers and to the init containers that
    start after the sidecar (KEP-753). Pod-level requests replace the sum (KEP-2837).
    """
    spec = pod.get("spec") or {}
    running = _sum_milli(container_requests(container) for container in spec.get("containers") or ())
    sidecars: MilliResources = {}
    starting: MilliResources = {}
    for container in spec.get("initContainers") or ():
        wanted = container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum_milli((sidecars, wanted))
            wanted = sidecars
        else:
            wanted = _sum_milli((sidecars, wanted))
        starting = _max_milli(starting, wanted)
    total = _max_milli(_sum_milli((running, sidecars)), starting)
    total |= to_milli((spec.get("resources") or {}).get("requests") or {})
    total = _sum_milli((total, to_milli(spec.get("overhead") or {})))
    total["pods"] = 1000
    return total


def is_extended(resource: str) -> bool:
    """Return whether a resource is extended: its name has a domain that is not Kubernetes' own.

    https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources
    """
    domain, slash, _ = resource.partition("/")
    native = domain == _NATIVE_DOMAIN or domain.endswith("." + _NATIVE_DOMAIN) or domain.startswith(_OTHER_PREFIXES)
    return bool(slash) and not native


def device_requests(pod: Mapping[str, Any]) -> MilliResources:
    """Return the extended resources that a pod requests, in thousandths, summed as the scheduler sums them.

    Init containers count. Zero amounts are left out.
    """
    spec = pod.get("spec") or {}
    requests = pod_requests({"spec": {kind: spec.get(kind) for kind in ("containers", "initContainers")}})
    return {name: amount for name, amount in requests.items() if amount and is_extended(name)}


def container_requests(container: Mapping[str, Any]) -> MilliResources:
    """Return a container's requests. A resource with a limit only gets the limit, like API servers default it."""
    resources = container.get("resources") or {}
    return to_milli({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def has_equal_limits(container: Mapping[str, Any]) -> bool:
    """Return whether a container's limits of cpu and memory equal its requests, as QoS class Guaranteed requires."""
    limits = to_milli((container.get("resources") or {}).get("limits") or {})
    requests = container_requests(container)
    return all(limits.get(name, 0) > 0 and limits[name] == requests.get(name) for name in ("cpu", "memory"))


def _parse_milli(quantity: Quantity) -> int:
    return int((parse_quantity(quantity) * _THOUSAND).to_integral_value(rounding=ROUND_CEILING))


def _sum_milli(lists: Iterable[Mapping[str, int]]) -> MilliResources:
    total: MilliResources = {}
    for resources in lists:
        for name, value in resources.items():
            total[name] = total.get(name, 0) + value
    return total


def _max_milli(one: MilliResources, other: MilliResources) -> MilliResources:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}
