"""Where a tenant's pods really run, as the kubelet endpoint asks for it."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.kubelet.simulation import NODE_ANNOTATION, read_simulation
from vkgateway.kubelet.target import PlacedPod, PodTarget
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.pods.pod_context import decode
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import ComputePodView, TenantPodView


def pod_target(tenant: str, view: TenantPodView, below: ComputePodView, *, link: ComputeLink) -> PodTarget:
    """The compute pod that stands for a tenant's pod, to be reached."""
    key, uid = view.metadata.key, below.metadata.uid

    def alive() -> bool:
        now = link.pods.find_pod(tenant, key)
        return now is not None and now.metadata.uid == uid and not now.has_ended

    metadata = below.metadata
    return PodTarget(link.client, metadata.namespace, metadata.name, uid, tenant_uid=view.metadata.uid, is_alive=alive)


def placed_pods(tenant: str, pods: Mapping[Key, TenantPodView], *, link: ComputeLink, node: str) -> list[PlacedPod]:
    """The compute pods that stand for a tenant's pods on a virtual node and have a compute node."""
    found = []
    for below in link.pods.of_tenant(tenant):
        view = pods.get(below.tenant_key)
        if view is None or view.metadata.uid != below.tenant_uid or view.spec.node_name != node:
            continue
        if below.spec.node_name:
            found.append(_placed_pod(view, below, link=link))
    return found


def _placed_pod(view: TenantPodView, below: ComputePodView, *, link: ComputeLink) -> PlacedPod:
    node = link.nodes.store.get(("", below.spec.node_name))
    on_played_node = node is not None and NODE_ANNOTATION in node.metadata.annotations
    return PlacedPod(
        cluster=link.client,
        node=below.spec.node_name,
        namespace=below.metadata.namespace,
        name=below.metadata.name,
        uid=below.metadata.uid,
        tenant_namespace=view.metadata.namespace,
        tenant_name=view.metadata.name,
        tenant_uid=view.metadata.uid,
        virtual_node=view.spec.node_name,
        labels=view.metadata.labels,
        is_running=below.phase == "Running",
        on_simulated_node=on_played_node,
        simulation=read_simulation(decode(below.status), below.metadata.annotations) if on_played_node else None,
    )
