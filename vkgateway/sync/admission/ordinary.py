"""Pods without devices whose marks of a gang mean nothing in their tenant: they start as pods without a mark do."""

from __future__ import annotations

from vkgateway.model.objects import Object
from vkgateway.sync.admission.beside import Beside
from vkgateway.sync.admission.tenant import TenantAdmission
from vkgateway.sync.pods.views import TenantPodView
from vkgateway.translate.gangs import Kind
from vkgateway.translate.gangs.marked import is_void, mark_kinds, needs_kind, written_marks
from vkgateway.translate.governed import devices


class OrdinaryPods:
    """One tenant's. What was said of a pod holds as long as it carries the same marks, also if a kind is installed."""

    def __init__(self, admission: TenantAdmission, beside: Beside) -> None:
        self._admission = admission
        self._beside = beside
        self._marks: dict[str, frozenset[str]] = {}
        """The marks that each carries, by uid."""

    async def unserved_kinds(self, pod: Object) -> frozenset[Kind]:
        """Ask the tenant's API server which of the kinds that a pod's marks need it does not serve now."""
        return await self._beside.unserved(mark_kinds(pod))

    def must_ask(self, pod: Object) -> bool:
        """Whether a pod carries a mark that may mean nothing: that its kind is served is not known."""
        return not all(map(self._beside.follows, mark_kinds(pod)))

    def judge(self, pod: Object, unserved: frozenset[Kind]) -> bool:
        """Return whether a pod is one, and remember it: its marks need kinds that are not served.

        What runs below stays what it is. The arbiter does not take over a pod that started without it, and keeps one
        that it placed.
        """
        metadata = pod["metadata"]
        found = needs_kind(pod) and not devices(pod)
        if found:
            placed = self._admission.is_placed_below((metadata["namespace"], metadata["name"]), metadata["uid"])
            found = is_void(pod, unserved) if placed is None else not placed
        if found:
            labels, annotations = metadata.get("labels") or (), metadata.get("annotations") or ()
            self._marks[metadata["uid"]] = written_marks(labels=labels, annotations=annotations)
        else:
            self._marks.pop(metadata["uid"], None)
        return found

    def knows(self, view: TenantPodView) -> bool:
        """Whether a pod was found to be one, by the marks that it still carries."""
        metadata = view.metadata
        marks = self._marks.get(metadata.uid)
        return marks is not None and marks == written_marks(labels=metadata.labels, annotations=metadata.annotations)

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a pod that is gone."""
        self._marks.pop(uid, None)
