"""Documents for operators of the platform, who see all, and for a tenant, which sees only what is its own (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from msgspec import structs

from vkgateway.api.objects import find_condition
from vkgateway.api.types import GUARANTEE_KEPT, VIRTUAL_NODES_READY, ComputeCluster, Tenant
from vkgateway.page.documents import (
    ClusterRow,
    ControlPlaneRow,
    Document,
    Sections,
    VirtualNodeRow,
    condition_rows,
)
from vkgateway.page.history import pool_key, tenant_key
from vkgateway.page.timeline import Timeline, TimelineEntry
from vkgateway.scheduler.core.reasons.gang_names import hide_gang, is_gang_of
from vkgateway.scheduler.core.reasons.node_report import NodeReport
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, GangReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the gateway knows at one moment (seconds since the epoch)."""

    time: float
    leading: bool
    report: ArbiterReport
    nodes: tuple[NodeReport, ...]
    tenants: Mapping[str, Tenant]
    compute_clusters: Mapping[str, ComputeCluster]
    timeline: Timeline

    def uid_of(self, tenant: str) -> str:
        """Return the UID of the Tenant of a name; empty: there is none."""
        found = self.tenants.get(tenant)
        return found.metadata.uid if found is not None else ""


def platform_document(facts: Facts) -> Document:
    """Return all that the gateway knows."""
    sections: Sections = {
        "pools": {pool_key(row): row for row in facts.report.pools},
        "tenants": {tenant_key(row): row for row in facts.report.tenants},
        "gangs": {row.id: row for row in facts.report.gangs},
        "nodes": {f"{row.compute_cluster}/{row.name}/{row.resource}": row for row in facts.nodes},
        "timeline": facts.timeline.all_entries(),
        "clusters": {name: _cluster_row(each) for name, each in facts.compute_clusters.items()},
        "controlPlanes": {name: _control_plane_row(each) for name, each in facts.tenants.items()},
    }
    return Document(scope="platform", time=facts.time, leading=facts.leading, sections=sections)


def tenant_document(facts: Facts, tenant: str, namespaces: Collection[str] | None = None) -> Document:
    """Return what one tenant may see: its gangs, quotas, virtual nodes and control plane, and nothing of others.

    With `namespaces`: what a reader of these namespaces may see.
    """
    if namespaces is not None:
        return _namespaces_document(facts, tenant, frozenset(namespaces))
    own = facts.tenants.get(tenant)
    entries: Mapping[str, TimelineEntry] = facts.timeline.tenant_entries(tenant, facts.uid_of(tenant))
    sections: Sections = {
        "tenants": {tenant_key(row): row for row in facts.report.tenants if row.tenant == tenant},
        "gangs": {row.id: _own_gang(row) for row in facts.report.gangs if row.tenant == tenant},
        "nodes": {f"{row.name}/{row.resource}": row for row in _virtual_nodes(own)} if own is not None else {},
        "timeline": entries,
        "controlPlanes": {tenant: _own_control_plane(own)} if own is not None else {},
    }
    return Document(scope="tenant", time=facts.time, leading=facts.leading, sections=sections)


def _namespaces_document(facts: Facts, tenant: str, namespaces: Collection[str]) -> Document:
    """Return what a reader of some namespaces may see: their gangs, and nothing that belongs to no namespace.

    It has no sums of the tenant: in Kubernetes, nodes and quotas of other namespaces need further rights, too.
    """
    rows = {row.id: row for row in facts.report.gangs if row.tenant == tenant}
    sections: Sections = {
        "gangs": {
            key: _gang_in_namespaces(row, rows, namespaces) for key, row in rows.items() if row.namespace in namespaces
        },
        "timeline": facts.timeline.namespace_entries(tenant, facts.uid_of(tenant), namespaces),
    }
    return Document(scope="tenant", time=facts.time, leading=facts.leading, sections=sections)


def _gang_in_namespaces(row: GangReport, rows: Mapping[str, GangReport], namespaces: Collection[str]) -> GangReport:
    """Return a gang's row that names no gang of other namespaces."""
    row = _own_gang(row)
    for field in ("behind", "ends"):
        gang = getattr(row, field)
        if gang and not is_gang_of(gang, row.tenant, namespaces):
            named = rows.get(gang)
            message = hide_gang(row.message, gang, named.name if named is not None else "")
            row = structs.replace(row, message=message, **{field: ""})
    return row


def _own_gang(row: GangReport) -> GangReport:
    """Return a gang's row without the name of another tenant's gang."""
    if not row.behind or row.behind.startswith(f"{row.tenant}/"):
        return row
    return structs.replace(row, behind="")


def _virtual_nodes(tenant: Tenant) -> Iterable[VirtualNodeRow]:
    nodes_ready = find_condition(tenant.status.conditions, VIRTUAL_NODES_READY)
    for pool in tenant.status.pools:
        problem = "" if pool.ready else (nodes_ready.reason if nodes_ready is not None else "NotReady")
        devices = {name: amount for name, amount in pool.capacity.items() if "/" in name}
        for resource, amount in (devices or pool.capacity).items():
            yield VirtualNodeRow(
                name=pool.node_name,
                pool=pool.name,
                resource=resource,
                capacity=str(amount),
                usable=pool.ready,
                problem=problem,
            )


def _cluster_row(cluster: ComputeCluster) -> ClusterRow:
    return ClusterRow(version=cluster.status.version, conditions=condition_rows(cluster.status.conditions))


def _own_control_plane(tenant: Tenant) -> ControlPlaneRow:
    """Return a control plane's row for its tenant: other messages may name servers, nodes or sums of the platform."""
    row = _control_plane_row(tenant)
    conditions = (each if each.type == GUARANTEE_KEPT else structs.replace(each, message="") for each in row.conditions)
    return structs.replace(row, conditions=tuple(conditions))


def _control_plane_row(tenant: Tenant) -> ControlPlaneRow:
    server = tenant.status.api_server
    return ControlPlaneRow(
        phase=tenant.status.phase,
        driver=tenant.spec.control_plane.driver,
        version=server.version if server is not None else "",
        conditions=condition_rows(tenant.status.conditions),
    )
