"""Dispatch of the arbiter's decisions to the tenants of the gangs."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from vkgateway.arbiter.decisions import Decisions, PendingReport
from vkgateway.arbiter.snapshot import Snapshot
from vkgateway.sync.admission.member import tenant_of_gang
from vkgateway.sync.admission.tenant_admission import TenantAdmission

log = structlog.get_logger(__name__)


def dispatch_decisions(
    decisions: Decisions, snapshot: Snapshot, tenants: Mapping[str, TenantAdmission], *, now: float
) -> None:
    """Apply each decision to the tenant of its gang. Decisions on tenants that were removed during the cycle are
    dropped.
    """

    def tenant_of(gang: str) -> TenantAdmission | None:
        return tenants.get(tenant_of_gang(gang))

    for admit in decisions.admits:
        if (tenant := tenant_of(admit.gang)) is not None:
            tenant.apply_admit(admit, now=now)
    for evict in decisions.evicts:
        if (tenant := tenant_of(evict.gang)) is not None:
            tenant.apply_evict(evict)
            log.info(
                "evicting",
                gang=evict.gang,
                pods=len(evict.pods),
                makes_room_for=evict.makes_room_for,
                gpu_seconds_lost=round(evict.lost),
                gpu_seconds_saved=round(evict.saved),
            )
    for reprieve in decisions.reprieves:
        if (tenant := tenant_of(reprieve.gang)) is not None:
            tenant.apply_reprieve(reprieve)
    for promote in decisions.promotes:
        if (tenant := tenant_of(promote.gang)) is not None:
            tenant.apply_promote(promote)
    _dispatch_pending_reasons(decisions, snapshot, tenants)


def _dispatch_pending_reasons(decisions: Decisions, snapshot: Snapshot, tenants: Mapping[str, TenantAdmission]) -> None:
    holds: dict[str, list[PendingReport]] = {name: [] for name in tenants}
    for report in decisions.holds:
        holds.setdefault(tenant_of_gang(report.gang), []).append(report)
    pools = {gang.id: gang.pools[0] for gang in snapshot.gangs if gang.pools}
    for name, tenant in tenants.items():
        tenant.set_pending_reasons(
            holds[name], pools={report.gang: report.pool or pools.get(report.gang) for report in holds[name]}
        )
