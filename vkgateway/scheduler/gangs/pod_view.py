"""Pod as the gang readers see it: optional metadata, its controller, and its index."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs import mark_values
from vkgateway.scheduler.gangs.marks import Kind, Reference

_INDEX_MARKS: Final = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
_INDEX: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_NUMBERED_NAME: Final = re.compile(r".*-([0-9]{1,6})", re.ASCII)


class GangPodView:
    """Accessors for a pod's marks. Missing maps and fields are empty."""

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
        """UID of the pod, or its name while it has no UID."""
        return self._metadata.get("uid") or self.name

    @property
    def run_limit(self) -> float | None:
        """Seconds that the pod may run (`spec.activeDeadlineSeconds`), or None if there is no limit."""
        seconds = self.spec.get("activeDeadlineSeconds")
        return None if seconds is None else float(seconds)

    @property
    def controller_key(self) -> tuple[str, str, str]:
        """API group, kind and name of the object that created the pod. All three are empty if there is none."""
        return _controller_key(self._metadata)

    @property
    def controller_uid(self) -> str:
        """UID of the object that created the pod, or empty."""
        owners = self._metadata.get("ownerReferences") or ()
        return next((str(owner.get("uid") or "") for owner in owners if owner.get("controller")), "")

    def pod_index(self, *marks: str) -> int:
        """Return the pod's index: the first number among these labels or annotations.

        Then the labels of Indexed Jobs and StatefulSets count, and last the number at the end of the pod's name. The
        default is 0. The index only orders pods, so invalid values are ignored.
        """
        for mark in (*marks, *_INDEX_MARKS):
            value = self.labels.get(mark) or self.annotations.get(mark) or ""
            if _INDEX.fullmatch(value):
                return int(value)
        numbered = _NUMBERED_NAME.fullmatch(self.name)
        return int(numbered[1]) if numbered else 0

    def reference_to(self, kind: Kind, name: str, *, mark: str) -> Reference:
        """Return a reference to an object in the pod's namespace, which `mark` names.

        Raises:
            MarkError: the value of `mark` is not a valid object name.
        """
        return Reference(*kind, self.namespace, mark_values.parse_object_name(mark, name))


def controller_key(found: Object) -> tuple[str, str, str]:
    """Return API group, kind and name of an object's controller. All three are empty if there is none."""
    return _controller_key(found.get("metadata") or {})


def _controller_key(metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            group = str(owner.get("apiVersion") or "").rpartition("/")[0]
            return group, str(owner.get("kind") or ""), str(owner.get("name") or "")
    return "", "", ""
