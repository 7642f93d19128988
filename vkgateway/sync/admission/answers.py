"""Carries what the arbiter decided to the tenants whose gangs it is about."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from vkgateway.arbiter.decisions import Decisions, Hold
from vkgateway.arbiter.facts import Snapshot
from vkgateway.sync.admission.member import tenant_of
from vkgateway.sync.admission.tenant import TenantAdmission

log = structlog.get_logger(__name__)


def carry_out(decisions: Decisions, snapshot: Snapshot, tenants: Mapping[str, TenantAdmission], *, now: float) -> None:
    """Tell each tenant what is its own; one that went while it was being decided hears nothing."""

    def of(gang: str) -> TenantAdmission | None:
        return tenants.get(tenant_of(gang))

    for admit in decisions.admits:
        if (tenant := of(admit.gang)) is not None:
            tenant.admit(admit, now=now)
    for evict in decisions.evicts:
        if (tenant := of(evict.gang)) is not None:
            tenant.evict(evict)
            log.info(
                "evicting",
                gang=evict.gang,
                pods=len(evict.pods),
                makes_room_for=evict.makes_room_for,
                gpu_seconds_lost=round(evict.lost),
                gpu_seconds_saved=round(evict.saved),
            )
    for reprieve in decisions.reprieves:
        if (tenant := of(reprieve.gang)) is not None:
            tenant.reprieve(reprieve)
    for promote in decisions.promotes:
        if (tenant := of(promote.gang)) is not None:
            tenant.promote(promote)
    _hold(decisions, snapshot, tenants)


def _hold(decisions: Decisions, snapshot: Snapshot, tenants: Mapping[str, TenantAdmission]) -> None:
    holds: dict[str, list[Hold]] = {name: [] for name in tenants}
    for hold in decisions.holds:
        holds.setdefault(tenant_of(hold.gang), []).append(hold)
    pools = {gang.id: gang.pools[0] for gang in snapshot.gangs if gang.pools}
    for name, tenant in tenants.items():
        tenant.hold(holds[name], pools={hold.gang: hold.pool or pools.get(hold.gang) for hold in holds[name]})
