"""What a tenant's reconcilers want to hear from a compute cluster, and who of them an object concerns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vkgateway.model.names import TENANT_LABEL
from vkgateway.model.objects import Meta
from vkgateway.sync.views.ownership import CopyKind, Key, owned_by


class Listener(Protocol):
    """What a tenant's reconcilers want to hear from a compute cluster; each call only marks work to be done."""

    def compute_pod_changed(self, key: Key) -> None:
        """The compute pod that stands for a tenant pod appeared, changed or went."""

    def compute_tokens_gone(self, key: Key) -> None:
        """The tokens of a pod (its namespace and name in the tenant) were deleted below."""

    def compute_copy_changed(self, kind: CopyKind, key: Key) -> None:
        """A copy of a ConfigMap or Secret appeared, changed or went."""

    def compute_namespace_changed(self, namespace: str) -> None:
        """The compute namespace of a tenant namespace appeared, changed or went."""

    def compute_service_changed(self, key: Key) -> None:
        """The compute Service, or a slice of ours, that stands for a tenant's of this key appeared, changed or went."""

    def compute_services_known(self) -> None:
        """All Services, slices, network policies or disruption budgets of ours are known: look at them again."""

    def compute_policy_changed(self, namespace: str) -> None:
        """A network policy in the compute namespace of a tenant namespace appeared, changed or went."""

    def compute_budget_changed(self, key: Key) -> None:
        """The compute PodDisruptionBudget that stands for a tenant's of this key appeared, changed or was deleted."""

    def compute_names_changed(self) -> None:
        """What of ours stands in the gateway's own namespace for the tenant appeared, changed or went."""

    def compute_claim_changed(self, uid: str) -> None:
        """The compute claim that stands for a tenant's of this UID appeared, changed or went."""

    def compute_storage_known(self) -> None:
        """Storage classes changed, or all claims and classes became known: look at them again."""

    def compute_event_changed(self, link: str, key: Key) -> None:
        """An event in one of the tenant's compute namespaces appeared or changed; `key` is its own."""

    def compute_reachable(self) -> None:
        """The cluster became reachable or unreachable, or a list became complete: look at everything again."""


Listeners = Mapping[str, Listener]
"""Those who listen now, by tenant."""


def listener_of(listeners: Listeners, metadata: Meta) -> Listener | None:
    """Who hears of a namespaced compute object: the tenant whose it is, if that one listens."""
    tenant = metadata.labels.get(TENANT_LABEL, "")
    listener = listeners.get(tenant)
    return listener if listener is not None and owned_by(tenant, metadata) else None
