"""Addresses at which pods of compute clusters reach the servers of tenants.

A Service's address is of no use in an EndpointSlice, because kube-proxy does not translate an address twice. So the
addresses are those of the ready pods, which Kubernetes publishes in the EndpointSlices of the Services.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import NotPublishedError, UnavailableError
from vkgateway.api.names import CONTROL_PLANE_LABEL
from vkgateway.kinds.services.translation import SliceView, decode_slice
from vkgateway.kube.client import Client
from vkgateway.kube.cluster_uid import read_cluster_uid
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import ENDPOINT_SLICES
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.names import API_SERVER


class ServerAddresses:
    """Addresses of the Services of control planes, from a watch of their EndpointSlices.

    `on_change` is called with the name of a tenant whose servers may have other addresses.
    """

    def __init__(self, client: Client, *, on_change: Callable[[str], None]) -> None:
        self._client = client
        self._on_change = on_change
        self._uid = ""
        self._by_service: defaultdict[tuple[str, str], dict[str, frozenset[ServerEndpoint]]] = defaultdict(dict)
        """Ready endpoints of each EndpointSlice, by namespace and name of the Service."""
        self._slices: Reflector[SliceView] = Reflector(
            client,
            ENDPOINT_SLICES,
            decode=decode_slice,
            on_change=self._slice_changed,
            on_complete=self._list_completed,
            label_selector=CONTROL_PLANE_LABEL,
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._slices.run()

    async def endpoints_for(self, cluster: ClusterIdentity, *, namespace: str, service: str) -> list[ServerEndpoint]:
        """Return where pods of a compute cluster reach a Service of a control plane; none while no pod is ready.

        Raises:
            NotPublishedError: pods of that cluster cannot reach the pods of the management cluster.
            UnavailableError: the addresses are not known yet.
        """
        server = "API server" if service == API_SERVER else "name server"
        if not await self.is_management(cluster):
            raise NotPublishedError(
                f"pods of compute cluster {cluster.name!r} cannot reach the tenant's {server}, which has no address "
                "outside the management cluster"
            )
        if not self._slices.is_complete:
            raise UnavailableError(f"the addresses of the tenant's {server} are not known yet")
        return self.ready_endpoints(namespace=namespace, service=service)

    def ready_endpoints(self, *, namespace: str, service: str) -> list[ServerEndpoint]:
        """Return the ready pods of a Service as far as they are known."""
        slices = self._by_service.get((namespace, service), {})
        return sorted(frozenset().union(*slices.values()))

    async def is_management(self, cluster: ClusterIdentity) -> bool:
        """Return whether a compute cluster is the management cluster. Raises UnavailableError if that is unknown."""
        if not cluster.uid:
            raise UnavailableError(f"compute cluster {cluster.name!r} is not identified yet")
        self._uid = self._uid or await read_cluster_uid(self._client)
        return cluster.uid == self._uid

    def _slice_changed(self, old: SliceView | None, new: SliceView | None) -> None:
        before = self._forget_slice(old) if old is not None else frozenset()
        after = self._index_slice(new) if new is not None else frozenset()
        view = new or old
        if view is not None and before != after and self._slices.is_complete:
            self._on_change(view.metadata.labels.get(CONTROL_PLANE_LABEL, ""))

    def _forget_slice(self, view: SliceView) -> frozenset[ServerEndpoint]:
        key = view.metadata.namespace, view.service_name
        found = self._by_service[key].pop(view.metadata.name, frozenset())
        if not self._by_service[key]:
            del self._by_service[key]
        return found

    def _index_slice(self, view: SliceView) -> frozenset[ServerEndpoint]:
        ready = frozenset(_ready_endpoints(view))
        self._by_service[view.metadata.namespace, view.service_name][view.metadata.name] = ready
        return ready

    def _list_completed(self) -> None:
        for tenant in {view.metadata.labels.get(CONTROL_PLANE_LABEL, "") for view in self._slices.store.values()}:
            self._on_change(tenant)


def _ready_endpoints(view: SliceView) -> Iterator[ServerEndpoint]:
    """Yield the endpoints that serve. A condition that is absent counts as ready, as in kube-proxy."""
    for endpoint in view.endpoints or ():
        if (endpoint.get("conditions") or {}).get("ready") is False:
            continue
        for address in endpoint.get("addresses") or ():
            for port in {port["port"] for port in view.ports or () if port.get("port")}:
                yield ServerEndpoint(address, port)
