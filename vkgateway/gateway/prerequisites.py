"""What a cluster must have before the gateway can work with it: any its namespace, a compute cluster more."""

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
    """Make the gateway's own namespace; repeating it changes nothing."""
    await apply_objects(client, [_NAMESPACE], field_manager=FIELD_MANAGER)


async def ensure_prerequisites(client: Client) -> None:
    """Make what tenants' pods need in a compute cluster: that, and priority classes that evict nobody."""
    classes = [_priority_class(name, *what) for name, what in _PRIORITIES.items()]
    await apply_objects(client, [_NAMESPACE, *classes], field_manager=FIELD_MANAGER)
