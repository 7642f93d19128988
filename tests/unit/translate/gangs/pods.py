"""Pods and objects with gang marks, as a tenant's API server returns them."""

from __future__ import annotations

from typing import Any

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs import GangMarks, Kind, Reference, gang_references, read_marks

Marks = dict[str, str]


def pod(
    name: str = "train-0",
    *,
    labels: Marks | None = None,
    annotations: Marks | None = None,
    owner: tuple[str, str, str] | None = None,
    **spec: Any,
) -> Object:
    """Return a gated pod with a GPU. `owner` is API version, kind and name of its controller."""
    metadata: Object = {
        "name": name,
        "namespace": "research",
        "uid": f"uid-of-{name}",
        "creationTimestamp": "2026-03-01T12:00:00Z",
        "labels": labels or {},
        "annotations": annotations or {},
    }
    if owner is not None:
        version, kind, owner_name = owner
        reference = {"apiVersion": version, "kind": kind, "name": owner_name, "uid": "o-1", "controller": True}
        metadata["ownerReferences"] = [reference]
    container = {"name": "app", "image": "pytorch:2.4", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "schedulingGates": [{"name": "vkgateway.io/admission"}], **spec},
        "status": {"phase": "Pending"},
    }


def ours(**marks: str) -> Marks:
    """Return vkgateway's annotations: `ours(gang="a", min="4")` are `vkgateway.io/gang` and `vkgateway.io/gang-min`."""
    return {
        "vkgateway.io/gang" if key == "gang" else f"vkgateway.io/gang-{key.replace('_', '-')}": value
        for key, value in marks.items()
    }


def read(marked: Object, *beside: Object, unserved: frozenset[Kind] = frozenset()) -> GangMarks:
    """Read a pod's marks. Only objects that `gang_references` names are found."""
    return read_marks(marked, found(marked, *beside, unserved=unserved), unserved)


def found(marked: Object, *beside: Object, unserved: frozenset[Kind] = frozenset()) -> dict[Reference, Object]:
    """Return the objects that `gang_references` names."""
    by_identity = {
        (item["apiVersion"].rpartition("/")[0], item["kind"], item["metadata"]["name"]): item for item in beside
    }
    wanted = {
        reference: (reference.group, reference.kind, reference.name) for reference in gang_references(marked, unserved)
    }
    return {reference: by_identity[key] for reference, key in wanted.items() if key in by_identity}


def beside(version: str, kind: str, name: str, spec: Any, status: Any = None) -> Object:
    """Return an object in the pod's namespace."""
    made = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "research"}, "spec": spec}
    return made if status is None else {**made, "status": status}


def job(name: str, status: Object | None = None, **spec: Any) -> Object:
    """Return a Job."""
    return beside("batch/v1", "Job", name, spec, status or {})


def volcano_group(name: str, **spec: Any) -> Object:
    """Return a Volcano PodGroup."""
    return beside("scheduling.volcano.sh/v1beta1", "PodGroup", name, {"queue": "default", **spec})


def kubernetes_group(name: str, version: str = "scheduling.k8s.io/v1alpha2", **spec: Any) -> Object:
    """Return a Kubernetes PodGroup."""
    return beside(version, "PodGroup", name, spec)
