"""What a compute cluster must have before it can run tenants' pods."""

from __future__ import annotations

from typing import Any

from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.model.names import FIELD_MANAGER, GUARANTEED_CLASS, LOW_CLASS, SYSTEM_NAMESPACE

# Both are above zero: a pod without a class has 0 and may preempt what is below it, which only the arbiter may do.
_PRIORITIES = {
    GUARANTEED_CLASS: (1000, "Tenants' pods inside their guarantee."),
    LOW_CLASS: (1, "Tenants' pods on borrowed capacity."),
}


def documents() -> list[dict[str, Any]]:
    """Return the objects: the gateway's namespace, and priority classes that evict nobody."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
    return [namespace, *(_priority_class(name, *what) for name, what in _PRIORITIES.items())]


def _priority_class(name: str, value: int, description: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never",
        "description": description,
    }


async def ensure(client: Client) -> None:
    """Make them in a compute cluster; repeating it changes nothing."""
    await apply_objects(client, documents(), field_manager=FIELD_MANAGER)
