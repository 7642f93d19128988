"""What one tenant's reconcilers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vkgateway.kube.client import Client
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.node_binding import VirtualNodeBinding
from vkgateway.sync.tenant_cache import TenantCache
from vkgateway.sync.work_queue import WorkQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantScope:
    """One tenant's client, what it holds, where its pods may run, and what is to be done.

    `links` are all compute clusters that may hold something of it, by name, and `bindings` what each of its virtual
    nodes stands for; both change with the tenant. `clock` tells seconds since the epoch,
    `monotonic` seconds that no setting of a clock changes.
    """

    client: Client
    cache: TenantCache
    links: Mapping[str, ComputeLink]
    bindings: Mapping[str, VirtualNodeBinding]
    events: EventRecorder
    work_queue: WorkQueue
    clock: Callable[[], float]
    monotonic: Callable[[], float]
