"""Notifications from a compute cluster to a tenant's reconcilers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from vkgateway.model.names import TENANT_LABEL
from vkgateway.model.objects import Meta
from vkgateway.sync.views.ownership import CopyKind, Key, owned_by


class Listener(Protocol):
    """Receiver of one tenant's notifications from a compute cluster; each call only enqueues reconcile requests."""

    def compute_pod_changed(self, key: Key) -> None:
        """Handle a compute pod that was added, changed or deleted; `key` is the tenant pod's."""

    def compute_tokens_gone(self, key: Key) -> None:
        """Handle the deletion of a pod's token Secret in the compute cluster; `key` is the tenant pod's."""

    def compute_copy_changed(self, kind: CopyKind, key: Key) -> None:
        """Handle a copy of a ConfigMap or Secret that was added, changed or deleted."""

    def compute_namespace_changed(self, namespace: str) -> None:
        """Handle a compute namespace that was added, changed or deleted; `namespace` is the tenant's."""

    def compute_service_changed(self, key: Key) -> None:
        """Handle a compute Service or its EndpointSlice that was added, changed or deleted; `key` is the tenant
        Service's.
        """

    def compute_services_known(self) -> None:
        """Handle a completed list of Services, EndpointSlices, NetworkPolicies or PodDisruptionBudgets."""

    def compute_policy_changed(self, namespace: str) -> None:
        """Handle a NetworkPolicy that changed in the compute namespace of a tenant namespace."""

    def compute_budget_changed(self, key: Key) -> None:
        """Handle a compute PodDisruptionBudget that was added, changed or deleted; `key` is the tenant budget's."""

    def compute_names_changed(self) -> None:
        """Handle a change of the tenant's platform Services in the gateway's own namespace."""

    def compute_claim_changed(self, uid: str) -> None:
        """Handle a compute claim that was added, changed or deleted; `uid` is the UID of the tenant's claim."""

    def compute_storage_known(self) -> None:
        """Handle changed storage classes, or the completed lists of claims and storage classes."""

    def compute_event_changed(self, link: str, key: Key) -> None:
        """Handle an event in one of the tenant's compute namespaces; `key` is the event's."""

    def compute_reachable(self) -> None:
        """Handle a change of the cluster's reachability, or a completed list: reconcile everything."""


Listeners = Mapping[str, Listener]
"""Registered listeners by tenant."""


def listener_of(listeners: Listeners, metadata: Meta) -> Listener | None:
    """Return the listener of the tenant that owns a namespaced compute object, or None."""
    tenant = metadata.labels.get(TENANT_LABEL, "")
    listener = listeners.get(tenant)
    return listener if listener is not None and owned_by(tenant, metadata) else None
