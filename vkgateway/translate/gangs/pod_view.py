"""A pod as the readers of gangs look at it: metadata that may be missing, its controller, its place among its like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import mark_values
from vkgateway.translate.gangs.marks import Kind, Reference

_INDEX_MARKS: Final = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
_INDEX: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_NUMBERED_NAME: Final = re.compile(r".*-([0-9]{1,6})", re.ASCII)


class GangPodView:
    """Reads a pod's marks; nothing is missing, only empty."""

    __slots__ = ("_metadata", "annotations", "labels", "name", "namespace", "spec")

    def __init__(self, pod: Object) -> None:
        metadata: Mapping[str, Any] = pod.get("metadata") or {}
        self._metadata = metadata
        self.namespace: str = metadata.get("namespace") or ""
        self.name: str = metadata.get("name") or ""
        self.labels: Mapping[str, str] = metadata.get("labels") or {}
        self.annotations: Mapping[str, str] = metadata.get("annotations") or {}
        self.spec: Mapping[str, Any] = pod.get("spec") or {}

    @property
    def unique_id(self) -> str:
        """What tells the pod from all others: its uid, or where it has none yet, its name."""
        return self._metadata.get("uid") or self.name

    @property
    def run_limit(self) -> float | None:
        """Seconds that the pod may run (`spec.activeDeadlineSeconds`); None: no end is set."""
        seconds = self.spec.get("activeDeadlineSeconds")
        return None if seconds is None else float(seconds)

    @property
    def controller_key(self) -> tuple[str, str, str]:
        """API group, kind and name of the object that made the pod; three empty texts where there is none."""
        return _controller_key(self._metadata)

    @property
    def controller_uid(self) -> str:
        """UID of the object that made the pod; empty where there is none."""
        owners = self._metadata.get("ownerReferences") or ()
        return next((str(owner.get("uid") or "") for owner in owners if owner.get("controller")), "")

    def pod_index(self, *marks: str) -> int:
        """The pod's place among its like: by the first of these labels or annotations that holds a number.

        After them come those of Indexed Jobs and StatefulSets, and last the number that the pod's name ends with;
        0 where nothing tells. It only orders the pods, so what is no number is passed over.
        """
        for mark in (*marks, *_INDEX_MARKS):
            value = self.labels.get(mark) or self.annotations.get(mark) or ""
            if _INDEX.fullmatch(value):
                return int(value)
        numbered = _NUMBERED_NAME.fullmatch(self.name)
        return int(numbered[1]) if numbered else 0

    def reference_to(self, kind: Kind, name: str, *, mark: str) -> Reference:
        """A reference to an object in the pod's namespace, which `mark` names.

        Raises:
            MarkError: what stands there can be no object's name.
        """
        return Reference(*kind, self.namespace, mark_values.parse_object_name(mark, name))


def controller_key(found: Object) -> tuple[str, str, str]:
    """The same of any object."""
    return _controller_key(found.get("metadata") or {})


def _controller_key(metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            group = str(owner.get("apiVersion") or "").rpartition("/")[0]
            return group, str(owner.get("kind") or ""), str(owner.get("name") or "")
    return "", "", ""
