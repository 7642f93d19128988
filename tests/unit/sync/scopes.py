"""The scope of a tenant without a gateway, for tests of single parts of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tests.fakes.clock import EPOCH, FakeClock
from vkgateway.api.types import Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.tenant_scope import TenantScope, VirtualNodeBinding
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.runtime.requests import GATE, POD, ReconcileRequest, RequestQueue, WorkQueue
from vkgateway.runtime.views.ownership import Key
from vkgateway.scheduler.backends.pool_modes import PoolModes
from vkgateway.scheduler.service.arbitrated_tenants import ArbitratedTenants
from vkgateway.scheduler.service.arbitration import Arbitration, ArbitrationSettings, CycleTrigger

TENANT = "alpha"


class RecordedRequests:
    """Takes the place of the workers' queue: `added` are the requests, with the delay of each."""

    def __init__(self) -> None:
        self.added: list[tuple[ReconcileRequest, float]] = []

    def add(self, tenant: str, request: ReconcileRequest, *, delay: float = 0.0) -> None:
        self.added.append((request, delay))

    def pods(self) -> list[Key]:
        """The pods whose reconciliation was requested, also of their gates."""
        return [cast("Key", request.key) for request, _ in self.added if request.kind in (POD.name, GATE.name)]


def tenant_scope(
    client: Client,
    *,
    clock: Clock | None = None,
    links: dict[str, ComputeLink] | None = None,
    bindings: dict[str, VirtualNodeBinding] | None = None,
    requests: RecordedRequests | None = None,
    name: str = TENANT,
) -> TenantScope:
    """Return a scope with complete lists, whose requests are not handled."""
    scope = TenantScope(
        tenant=TenantContext(name=name, api_host="10.213.0.1", api_port=6443),
        client=client,
        all_links={} if links is None else links,
        bindings={} if bindings is None else bindings,
        work_queue=WorkQueue(name, cast("RequestQueue", requests or RecordedRequests())),
        clock=clock or FakeClock(origin=EPOCH),
    )
    set_followed(scope, followed=True)
    return scope


def set_followed(scope: TenantScope, *, followed: bool) -> None:
    """As if the tenant's lists were complete, or its API server did not answer."""
    for reflector in scope.cache.all_reflectors():
        event = reflector.state.complete_event
        event.set() if followed else event.clear()


@dataclass
class FakePlatform:
    """The compute clusters, pools and tenants of an arbitration."""

    links: Mapping[str, ComputeLink] = field(default_factory=dict)
    pools: Mapping[str, Iterable[Pool]] = field(default_factory=dict)
    tenants: Sequence[str] | None = ()
    cycles_without_notice: int = 0

    def pool_specs(self) -> Mapping[str, Iterable[Pool]]:
        return self.pools

    def expected_tenants(self) -> Sequence[str] | None:
        return self.tenants

    def notices_ended(self) -> None:
        self.cycles_without_notice += 1


def make_arbitration(
    settings: ArbitrationSettings, platform: Any, *, clock: Clock = SYSTEM_CLOCK, **options: Any
) -> Arbitration:
    """Return an arbitration of the clusters of `platform`, which expects its tenants."""
    tenants, trigger = ArbitratedTenants(), CycleTrigger()
    modes = PoolModes(tenants, on_change=trigger.set, clock=clock)
    return Arbitration(
        settings,
        platform,
        tenants=tenants,
        modes=modes,
        cycle_trigger=trigger,
        expected_tenants=platform.expected_tenants,
        notices_ended=platform.notices_ended,
        clock=clock,
        **options,
    )
