"""Pods without devices whose gang marks have no meaning in their tenant: they start like pods without marks."""

from __future__ import annotations

from vkgateway.model.objects import Object
from vkgateway.model.requests import device_requests
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.gangs import Kind
from vkgateway.translate.gangs.mark_detection import find_marks, has_unserved_marks, mark_kinds, needs_served_kind


class OrdinaryPods:
    """Ordinary pods of one tenant. The classification holds as long as a pod has the same marks, even if a kind is
    installed.
    """

    def __init__(self, admission: TenantAdmission, companions: CompanionObjects) -> None:
        self._admission = admission
        self._companions = companions
        self._marks: dict[str, frozenset[str]] = {}
        """Marks of each ordinary pod by UID."""

    async def unserved_kinds(self, pod: Object) -> frozenset[Kind]:
        """Ask the tenant's API server which kinds of a pod's marks it does not serve now."""
        return await self._companions.find_unserved(mark_kinds(pod))

    def must_query_kinds(self, pod: Object) -> bool:
        """Return whether the API server must be asked about a kind of the pod's marks."""
        return not all(map(self._companions.is_watched, mark_kinds(pod)))

    def classify_pod(self, pod: Object, unserved: frozenset[Kind]) -> bool:
        """Return whether a pod is ordinary, and remember it: the API server does not serve the kinds of its marks.

        Pods with a compute pod keep their classification. The arbiter does not take over a pod that started without it,
        and keeps one that it placed.
        """
        metadata = pod["metadata"]
        found = needs_served_kind(pod) and not device_requests(pod)
        if found:
            key = metadata["namespace"], metadata["name"]
            placed = self._admission.observer.is_compute_pod_placed(key, metadata["uid"])
            found = has_unserved_marks(pod, unserved) if placed is None else not placed
        if found:
            labels, annotations = metadata.get("labels") or (), metadata.get("annotations") or ()
            self._marks[metadata["uid"]] = find_marks(labels=labels, annotations=annotations)
        else:
            self._marks.pop(metadata["uid"], None)
        return found

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Return whether a pod with its current marks was classified as ordinary."""
        metadata = view.metadata
        marks = self._marks.get(metadata.uid)
        return marks is not None and marks == find_marks(labels=metadata.labels, annotations=metadata.annotations)

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted pod."""
        self._marks.pop(uid, None)
