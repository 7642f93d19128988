"""Compute pods and compute nodes of tenant pods, for the kubelet endpoint."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.kubelet.simulation import NODE_ANNOTATION, read_simulation
from vkgateway.kubelet.target import PlacedPod, PodTarget
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.pods.pod_context import decode
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import ComputePodView, TenantPodView


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
        is_running=compute_pod.phase == "Running",
        on_simulated_node=is_simulated,
        simulation=read_simulation(decode(compute_pod.status), compute_pod.metadata.annotations)
        if is_simulated
        else None,
    )
