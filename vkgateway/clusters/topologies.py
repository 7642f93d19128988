"""NUMA zones of compute nodes, read from NodeResourceTopology objects where that kind exists.

https://kubernetes-sigs.github.io/node-feature-discovery/master/usage/nfd-topology-updater.html
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from vkgateway.api.objects import Meta
from vkgateway.api.quantity import Quantity
from vkgateway.api.requests import MilliResources, to_milli
from vkgateway.clusters.cluster_watches import NODES, TOPOLOGIES, ClusterWatches
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import NODE_TOPOLOGIES
from vkgateway.scheduler.core.snapshot import Zone

log = structlog.get_logger(__name__)

_DISCOVERY_INTERVAL: Final = 60.0
"""Seconds between two checks whether the cluster serves the kind."""
_RETRY: Final = 5.0
_KNOWN_TIMEOUT: Final = 20.0
"""Seconds after which admission does not wait for zones any longer: most clusters have none."""
_POLICY, _SCOPE = "topologyManagerPolicy", "topologyManagerScope"
_LEGACY_POLICIES: Final = {"SingleNUMANodeContainerLevel": "container", "SingleNUMANodePodLevel": "pod"}
"""Values of `topologyPolicies` under which kubelets reject pods, and the scope of each."""
_SCOPES: Final = frozenset({"container", "pod"})


class _Attribute(msgspec.Struct):
    name: str = ""
    value: str = ""


class _Amount(msgspec.Struct):
    name: str
    allocatable: Quantity = 0
    available: Quantity = 0


class _Zone(msgspec.Struct):
    name: str = ""
    type: str = ""
    resources: list[_Amount] | None = None


class _Object(msgspec.Struct, rename="camel"):
    metadata: Meta
    topology_policies: list[str] | None = None
    attributes: list[_Attribute] | None = None
    zones: list[_Zone] | None = None


_decode = msgspec.json.Decoder(_Object).decode


def decode_topology(data: bytes) -> TopologyView:
    """Decode a NodeResourceTopology from its JSON; the result has no zones if a quantity cannot be parsed."""
    topology = _decode(data)
    metadata = Meta(
        name=topology.metadata.name, uid=topology.metadata.uid, resource_version=topology.metadata.resource_version
    )
    scope = _topology_scope(topology)
    try:
        zones = tuple(_decode_zone(zone) for zone in topology.zones or () if zone.type == "Node") if scope else ()
    except ValueError as error:
        log.warning("NUMA zones of a node cannot be parsed", node=metadata.name, error=str(error))
        zones = ()
    return TopologyView(metadata, scope or "container", zones)


def _topology_scope(topology: _Object) -> str:
    """Return the scope of the policy single-numa-node, or "" if the node has another policy."""
    attributes = {each.name: each.value for each in topology.attributes or ()}
    if _POLICY not in attributes:
        return next(
            (_LEGACY_POLICIES[name] for name in topology.topology_policies or () if name in _LEGACY_POLICIES), ""
        )
    scope = attributes.get(_SCOPE) or "container"
    return scope if attributes[_POLICY] == "single-numa-node" and scope in _SCOPES else ""


def _decode_zone(zone: _Zone) -> Zone:
    amounts = zone.resources or ()
    allocatable: MilliResources = to_milli({each.name: each.allocatable for each in amounts})
    return Zone(
        name=zone.name, allocatable=allocatable, available=to_milli({each.name: each.available for each in amounts})
    )


class ComputeTopologies:
    """NUMA zones of all nodes.

    Once a minute the gateway checks whether the cluster serves the kind, and watches it only then.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        watches: ClusterWatches,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name = name
        self._client = client
        self._watches = watches
        self._clock = clock
        self._reflector: Reflector[TopologyView] | None = None
        self.is_known = False
        """Whether the initial zones are known; also true if there are none."""

    def topology_items(self) -> list[tuple[str, TopologyView]]:
        """Return the known zones as pairs of node and view."""
        return [] if self._reflector is None else [(name, view) for (_, name), view in self._reflector.store.items()]

    async def run(self) -> None:
        """Check whether the kind is served, and watch it if so, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop_waiting(), name=f"compute/{self._name}/topologies-patience")
            watch: asyncio.Task[None] | None = None
            while True:
                served = await self._is_served()
                if served and watch is None:
                    self._reflector = self._new_reflector()
                    watch = group.create_task(self._reflector.run(), name=f"compute/{self._name}/watch-topologies")
                elif served is False:
                    if watch is not None:
                        watch.cancel()
                        watch = None
                    self._forget_topologies()
                    self._mark_known()
                await self._clock.sleep(_RETRY if served is None else _DISCOVERY_INTERVAL)

    async def _is_served(self) -> bool | None:
        """Return whether the cluster serves the kind and permits reading it; None if the check fails for now."""
        try:
            await self._client.request("GET", f"/{NODE_TOPOLOGIES.prefix}")
            await self._client.request("GET", NODE_TOPOLOGIES.path(), params={"limit": "1"})
        except errors.Forbidden as error:
            log.warning("no permission to read NUMA zones of nodes", compute=self._name, error=str(error))
            return False
        except errors.NotFound:
            return False
        except errors.ApiError:
            return None
        return True

    def _new_reflector(self) -> Reflector[TopologyView]:
        return Reflector(
            self._client,
            NODE_TOPOLOGIES,
            decode=decode_topology,
            on_change=self._handle_change,
            on_complete=self._mark_known,
        )

    async def _stop_waiting(self) -> None:
        await asyncio.sleep(_KNOWN_TIMEOUT)
        if not self.is_known:
            log.warning("unknown whether nodes have NUMA zones; not waiting any longer", compute=self._name)
            self._mark_known()

    def _mark_known(self) -> None:
        if not self.is_known:
            self.is_known = True
            self._watches.notify(NODES)

    def _forget_topologies(self) -> None:
        """Drop all zones because the kind is not served any longer."""
        reflector, self._reflector = self._reflector, None
        for _, name in reflector.store if reflector is not None else ():
            self._watches.notify(TOPOLOGIES, name, None)

    def _handle_change(self, old: TopologyView | None, new: TopologyView | None) -> None:
        view = new or old
        assert view is not None
        self._watches.notify(TOPOLOGIES, view.metadata.name, new)
