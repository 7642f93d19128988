"""Store of tenants. It exists before the parts that use it, and they subscribe to its changes."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from vkgateway.api.names import TENANT_FINALIZER
from vkgateway.api.types import Tenant, TenantStatus
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import TENANTS
from vkgateway.runtime.signals import Signal
from vkgateway.tenants.accepted_specs import AcceptedSpecs
from vkgateway.tenants.compute_cleanup import clusters_of
from vkgateway.tenants.record import TenantRecord


class TenantStore:
    """Tenants: their objects, accepted specs and records. The TenantController maintains specs and records."""

    def __init__(self, management: Client, accepted_specs: AcceptedSpecs) -> None:
        self.accepted_specs = accepted_specs
        self.records: dict[str, TenantRecord] = {}
        """Records of the reconciled tenants by name."""
        self.changed = Signal[[Tenant | None, Tenant | None]]()
        """A Tenant was added, changed or deleted: its old and new state."""
        self.outdated = Signal[[str]]()
        """A fact that a tenant's status reports changed: the tenant's name."""
        self.reflector: Reflector[Tenant] = Reflector(
            management, TENANTS, decode=msgspec.json.Decoder(Tenant).decode, on_change=self.changed.emit
        )
        self._is_loaded = False
        """Whether the accepted specs of all tenants are known."""

    def load_specs(self) -> None:
        """Load the specs that were accepted before this process started, once all objects are known."""
        self.accepted_specs.load(self.reflector.store.values())
        self._is_loaded = True

    def all_tenants(self) -> Collection[Tenant] | None:
        """Return the objects of all tenants; None while unknown."""
        return self.reflector.store.values() if self.reflector.is_complete else None

    def tenant_names(self) -> list[str]:
        """Return the names of the reconciled tenants."""
        return list(self.records)

    def tenant_statuses(self) -> dict[str, TenantStatus]:
        """Return the statuses of the reconciled tenants by name."""
        return {name: record.status for name, record in self.records.items()}

    def tenants_of(self, compute_cluster: str) -> list[str] | None:
        """Return the sorted names of the tenants that use pools of a compute cluster, or have only data left there.

        None before the tenants are known.
        """
        if not self._is_loaded:
            return None
        kept = {
            tenant.metadata.name
            for tenant in self.reflector.store.values()
            if tenant.spec.delete_after and TENANT_FINALIZER in tenant.metadata.finalizers
            if compute_cluster in clusters_of(tenant, None)
        }
        return sorted(kept.union(self.accepted_specs.tenants_of(compute_cluster)))

    def uid_of(self, name: str) -> str:
        """Return the UID of the Tenant of a name; empty: there is none. May be called from another thread."""
        tenant = self.reflector.store.get(("", name))
        return tenant.metadata.uid if tenant is not None else ""
