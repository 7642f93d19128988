"""A tenant's pods for the kubelet endpoint: lists, and the compute pods and compute nodes behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from vkgateway.api.errors import InputError, NotFoundError, UnavailableError
from vkgateway.api.names import UID_ANNOTATION
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.pod_context import decode
from vkgateway.kinds.services.pod_addresses import addresses_of
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import PODS
from vkgateway.nodes.absentpod import AbsentPod
from vkgateway.nodes.node_source import NodeSource
from vkgateway.nodes.simulation import NODE_ANNOTATION, read_simulation
from vkgateway.nodes.target import NoComputePodError, PlacedPod, PodTarget
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView, decode_tenant_pod

PODS_MAX_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer of the kubelet endpoint's /pods, in bytes."""


class TenantPods:
    """Pods of a running tenant; `sources` returns those of its current virtual nodes, by name."""

    def __init__(
        self,
        tenant: str,
        client: Client,
        cache: Reflector[TenantPodView],
        *,
        sources: Callable[[], Mapping[str, NodeSource]],
    ) -> None:
        self._sources = sources
        self._tenant = tenant
        self._client = client
        self._cache = cache
        self._list_lock = asyncio.Lock()

    @property
    def is_complete(self) -> bool:
        """Whether the tenant's pods are known."""
        return self._cache.is_complete

    def is_occupied(self, node: str) -> bool:
        """Return whether a virtual node has, or may have, pods that have not terminated."""
        return not self._cache.is_complete or any(
            pod.spec.node_name == node and not pod.is_terminal for pod in self._cache.store.values()
        )

    def find_pod(self, namespace: str, pod: str) -> PodTarget:
        """Return the target for requests to a tenant pod. Raises NotFoundError, NoComputePodError."""
        view = self._cache.store.get((namespace, pod))
        if view is None:
            raise NotFoundError(f"pod {namespace}/{pod} does not exist on a virtual node")
        for source in self._sources().values():
            compute_pod = source.link.pods.find_pod(self._tenant, (namespace, pod))
            if compute_pod is not None and compute_pod.metadata.annotations.get(UID_ANNOTATION) == view.metadata.uid:
                if not compute_pod.spec.node_name:
                    break  # the compute API server would return an empty log
                return pod_target(self._tenant, view, compute_pod, link=source.link)
        source_of_node = self._sources().get(view.spec.node_name)
        if source_of_node is None or not source_of_node.link.is_trusted:
            raise NotFoundError(f"pod {namespace}/{pod} cannot be found: its compute cluster is unreachable now")
        raise NoComputePodError(AbsentPod(f"{namespace}/{pod}", msgspec.json.decode(view.status)))

    def placed_on_node(self, node: str) -> tuple[str, list[PlacedPod]]:
        """Return a virtual node's name and its pods that are bound to a compute node.

        Without `node`, the tenant must have exactly one virtual node. Raises NotFoundError, InputError.
        """
        sources = self._sources()
        if not node:
            if len(sources) != 1:
                raise InputError(f"there are {len(sources)} virtual nodes; select one with /nodes/NAME/...")
            node = next(iter(sources))
        if node not in sources:
            raise NotFoundError(f"there is no virtual node {node[:253]!r}")
        return node, placed_pods(self._tenant, self._cache.store, link=sources[node].link, node=node)

    def owns_address(self, address: str) -> bool:
        """Return whether a running pod of the tenant in a reachable compute cluster has an IP address."""
        text = address.encode()
        return any(
            text in pod.status and address in addresses_of(pod)
            for source in self._sources().values()
            for pod in source.link.pods.of_tenant(self._tenant)
        )

    async def list_pods(self, node: str, phase: str) -> list[bytes]:
        """Return the tenant's pods on its virtual nodes as JSON, filtered by `node` and `phase` if given.

        The pods come from the tenant's API server, because the cache holds no complete pods. Lists run one at a time
        and are limited to PODS_MAX_BYTES, because the tenant controls the size of its pods and the request rate.
        Raises ApiError, UnavailableError, NotFoundError.
        """
        if node and node not in self._sources():
            raise NotFoundError(f"there is no virtual node {node[:253]!r}")
        nodes = (node,) if node else self._sources().keys()
        selector = "spec.nodeName!=" + (f",status.phase={phase}" if phase else "")
        found: list[bytes] = []
        size = 0
        async with self._list_lock:
            async for page in self._client.list_pages(PODS, field_selector=selector, limit=100):
                for item in map(bytes, page.items):
                    if decode_tenant_pod(item).spec.node_name in nodes:
                        found.append(item)
                        size += len(item)
                if size > PODS_MAX_BYTES:
                    raise UnavailableError(
                        f"the pods exceed {PODS_MAX_BYTES} bytes; list them from the API server instead"
                    )
        return found


def pod_target(tenant: str, view: TenantPodView, compute_pod: ComputePodView, *, link: ComputeLink) -> PodTarget:
    """Return the target for requests to the compute pod of a tenant pod."""
    key, uid = view.metadata.key, compute_pod.metadata.uid

    def alive() -> bool:
        current = link.pods.find_pod(tenant, key)
        return current is not None and current.metadata.uid == uid and not current.has_ended

    metadata = compute_pod.metadata
    return PodTarget(link.client, metadata.namespace, metadata.name, uid, tenant_uid=view.metadata.uid, is_alive=alive)


def placed_pods(tenant: str, pods: Mapping[Key, TenantPodView], *, link: ComputeLink, node: str) -> list[PlacedPod]:
    """Return the compute pods of a tenant's pods on a virtual node that are bound to a compute node."""
    found = []
    for compute_pod in link.pods.of_tenant(tenant):
        view = pods.get(compute_pod.tenant_key)
        if view is None or view.metadata.uid != compute_pod.tenant_uid or view.spec.node_name != node:
            continue
        if compute_pod.spec.node_name:
            found.append(_placed_pod(view, compute_pod, link=link))
    return found


def _placed_pod(view: TenantPodView, compute_pod: ComputePodView, *, link: ComputeLink) -> PlacedPod:
    node = link.nodes.store.get(("", compute_pod.spec.node_name))
    is_simulated = node is not None and NODE_ANNOTATION in node.metadata.annotations
    return PlacedPod(
        cluster=link.client,
        node=compute_pod.spec.node_name,
        namespace=compute_pod.metadata.namespace,
        name=compute_pod.metadata.name,
        uid=compute_pod.metadata.uid,
        tenant_namespace=view.metadata.namespace,
        tenant_name=view.metadata.name,
        tenant_uid=view.metadata.uid,
        virtual_node=view.spec.node_name,
        labels=view.metadata.labels,
        containers=view.containers,
        is_running=compute_pod.phase == "Running",
        on_simulated_node=is_simulated,
        simulation=read_simulation(decode(compute_pod.status), compute_pod.metadata.annotations)
        if is_simulated
        else None,
    )
