"""Objects that the gateway creates in a cluster before using it: its namespace, and priority classes."""

from __future__ import annotations

from typing import Any

from vkgateway.api.names import FIELD_MANAGER, GUARANTEED_CLASS, LOW_CLASS, SYSTEM_NAMESPACE
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client

# Above zero: a pod without a class has priority 0 and may preempt lower priorities, which is reserved to the arbiter.
_PRIORITIES = {
    GUARANTEED_CLASS: (1000, "Tenants' pods inside their guarantee."),
    LOW_CLASS: (1, "Tenants' pods on borrowed capacity."),
}
_NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}


def _priority_class(name: str, value: int, description: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never",
        "description": description,
    }


async def ensure_namespace(client: Client) -> None:
    """Create the gateway's namespace if it does not exist."""
    await apply_objects(client, [_NAMESPACE], field_manager=FIELD_MANAGER)


async def ensure_prerequisites(client: Client) -> None:
    """Create the namespace and the non-preempting priority classes of tenant pods in a compute cluster."""
    classes = [_priority_class(name, *definition) for name, definition in _PRIORITIES.items()]
    await apply_objects(client, [_NAMESPACE, *classes], field_manager=FIELD_MANAGER)
