"""Tenant volumes: name, source and node affinity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, GROUP
from vkgateway.api.objects import NodeView, Object
from vkgateway.api.quantity import Quantity
from vkgateway.clusters.pool_nodes import PoolNodes
from vkgateway.kinds.context import PoolContext
from vkgateway.kinds.pods.translation.node_terms import term_matches
from vkgateway.kinds.volumes.translation.claims import is_same_quantity
from vkgateway.kinds.volumes.translation.views import (
    PROVISIONAL_ANNOTATION,
    PROVISIONER,
    STORAGE,
    ClaimView,
    VolumeView,
    select_label,
)

VOLUME_FINALIZER: Final = f"{GROUP}/volume"
"""Finalizer of a tenant's volume: it exists until its compute volume was deleted."""
PROTECTION_FINALIZER: Final = "kubernetes.io/pv-protection"
"""Kubernetes' finalizer of volumes that claims use."""
PROVISIONED_BY_ANNOTATION: Final = "pv.kubernetes.io/provisioned-by"


def volume_name(uid: str) -> str:
    """Return the name of a claim's volume in the tenant cluster, from the claim's UID, as provisioners do."""
    return f"pvc-{uid}"


def tenant_volume(
    claim: ClaimView,
    compute_claim: ClaimView,
    *,
    cluster: str,
    reclaim_policy: str,
    node_affinity: Object | None,
    provisional: bool,
) -> Object:
    """Return the tenant's volume for its claim, reserved for it, so that the tenant cluster's controller binds the two.

    The volume names the driver (`csi.driver`), the handle (the claim's UID) and the compute cluster, but neither host
    nor path. A `provisional` volume has the requested size until the real one is known.
    """
    metadata, capacity = claim.metadata, compute_claim.storage_capacity if not provisional else None
    annotations = {PROVISIONED_BY_ANNOTATION: PROVISIONER} | ({PROVISIONAL_ANNOTATION: "true"} if provisional else {})
    spec: Object = {
        "capacity": {STORAGE: capacity or claim.requested_storage},
        "accessModes": list(claim.spec.access_modes),
        "volumeMode": claim.spec.volume_mode,
        "storageClassName": claim.class_name,
        "persistentVolumeReclaimPolicy": reclaim_policy,
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": metadata.namespace,
            "name": metadata.name,
            "uid": metadata.uid,
        },
        "csi": {"driver": PROVISIONER, "volumeHandle": metadata.uid},
    }
    if node_affinity is not None:
        spec["nodeAffinity"] = node_affinity
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(metadata.uid),
            "labels": {COMPUTE_CLUSTER_LABEL: cluster},
            "annotations": annotations,
            "finalizers": [PROTECTION_FINALIZER, VOLUME_FINALIZER],
        },
        "spec": spec,
    }


def volume_patch(volume: VolumeView, *, capacity: Quantity | None, node_affinity: Object | None) -> Object | None:
    """Return the patch that completes a volume once its compute volume is known, or None if nothing differs.

    The node affinity is set once, because Kubernetes does not allow changes.
    """
    spec: Object = {}
    if capacity is not None and not is_same_quantity(volume.storage_capacity, capacity):
        spec["capacity"] = {STORAGE: capacity}
    if node_affinity is not None and volume.spec.node_affinity is None:
        spec["nodeAffinity"] = node_affinity
    patch: Object = {"spec": spec} if spec else {}
    if volume.is_provisional:
        patch["metadata"] = {"annotations": {PROVISIONAL_ANNOTATION: None}}
    return patch or None


def volume_node_affinity(
    cluster: str,
    *,
    clusters: int,
    nodes_behind: Sequence[tuple[PoolContext, PoolNodes]],
    compute_affinity: Object | None = None,
) -> Object | None:
    """Return a volume's node affinity on the labels of virtual nodes, or None if every virtual node can use it.

    `cluster` is the volume's compute cluster, one of `clusters`. `nodes_behind` are the tenant's virtual nodes there,
    with the compute nodes behind each. `compute_affinity` is the compute volume's node affinity, if known. Virtual
    nodes without a compute node that can reach the volume are left out.
    """
    expressions: list[Object] = []
    if clusters > 1:
        expressions.append({"key": COMPUTE_CLUSTER_LABEL, "operator": "In", "values": [cluster]})
    terms = required_node_terms(compute_affinity)
    if terms:
        reached = [
            pool
            for pool, behind in nodes_behind
            if any(_reaches_node(term, node) for term in terms for node in behind.nodes)
        ]
        chosen = select_label(reached, [pool for pool, _ in nodes_behind])
        if reached and chosen is not None:
            expressions.append({"key": chosen[0], "operator": "In", "values": chosen[1]})
    if not expressions:
        return None
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}


def required_node_terms(affinity: Object | None) -> list[Object]:
    """Return the alternatives of a volume's node affinity. Empty: every node can reach it."""
    return ((affinity or {}).get("required") or {}).get("nodeSelectorTerms") or []


def _reaches_node(term: Object, node: NodeView) -> bool:
    return term_matches(term, name=node.metadata.name, labels=node.metadata.labels)
