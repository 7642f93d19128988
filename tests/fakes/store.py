"""Object store of a Kubernetes API server: versions, deletion, finalizers, history."""

from __future__ import annotations

import asyncio
import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from tests.fakes.managed_fields import after_update
from vkgateway.api.times import render_time
from vkgateway.kube.resources import NAMESPACES, PODS, Resource

Document = dict[str, Any]
Key = tuple[str, str]


class Refusal(Exception):  # noqa: N818 - it is an answer, not an error of the fake
    """Response other than success."""

    def __init__(self, status: int, reason: str, message: str, *, causes: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.causes = causes


@dataclass(frozen=True)
class Selection:
    """Namespace (empty: all), label selector and field selector, the latter two in kubectl's syntax."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def matches(self, document: Document | None) -> bool:
        if document is None:
            return False
        metadata = document["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        labels = metadata.get("labels") or {}
        return all(_label_matches(term, labels) for term in _terms(self.labels)) and all(
            _field_matches(term, document) for term in _terms(self.fields)
        )


def _terms(selector: str) -> list[str]:
    return [term for term in selector.split(",") if term]


def _label_matches(term: str, labels: dict[str, str]) -> bool:
    if "!=" in term:
        key, _, value = term.partition("!=")
        return labels.get(key) != value
    if "=" in term:
        key, _, value = term.replace("==", "=").partition("=")
        return labels.get(key) == value
    return term[1:] not in labels if term.startswith("!") else term in labels


def _field_matches(term: str, document: Document) -> bool:
    key, _, wanted = term.replace("==", "=").replace("!=", "!").replace("!", "=!", 1).partition("=")
    value: Any = document
    if key == "source":  # the one field of events that is no path
        key = "source.component"
    for part in key.split("."):
        value = (value or {}).get(part)
    return (value or "") != wanted[1:] if wanted.startswith("!") else (value or "") == wanted


@dataclass(frozen=True)
class Change:
    """One step of a kind's history."""

    version: int
    resource: Resource
    old: Document | None
    new: Document | None

    def event(self, selection: Selection) -> tuple[str, Document] | None:
        """Return the event of a watch with this selection, or None."""
        before, after = selection.matches(self.old), selection.matches(self.new)
        if after:
            assert self.new is not None
            return ("MODIFIED" if before else "ADDED"), self.new
        if before:
            last_state = copy.deepcopy(self.new or self.old or {})
            last_state["metadata"]["resourceVersion"] = str(self.version)
            return "DELETED", last_state
        return None


@dataclass
class ObjectStore:
    """All objects of one fake server. Returned documents belong to the store: copy them before a change."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    namespaces_must_exist: bool = False
    version: int = 100
    oldest: int = 100
    """Watches from earlier versions are refused with 410."""
    objects: dict[Resource, dict[Key, Document]] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _named: int = 0
    _dry: bool = False

    @contextmanager
    def dry_run(self, dry: bool = True) -> Iterator[None]:
        """Return results of writes within the block without storing them."""
        self._dry = dry
        try:
            yield
        finally:
            self._dry = False

    def all(self, resource: Resource) -> list[Document]:
        """Return all objects of a kind, sorted by namespace and name as servers do."""
        return [document for _, document in sorted(self.objects.get(resource, {}).items())]

    def find(self, resource: Resource, name: str, namespace: str = "") -> Document | None:
        """Return one object or None."""
        return self.objects.get(resource, {}).get((namespace if resource.namespaced else "", name))

    def get(self, resource: Resource, name: str, namespace: str = "") -> Document:
        """Return one object.

        Raises:
            Refusal: it does not exist (404).
        """
        found = self.find(resource, name, namespace)
        if found is None:
            raise Refusal(404, "NotFound", f'{resource.plural} "{name}" not found')
        return found

    def create(self, resource: Resource, document: Document, namespace: str = "") -> Document:
        """Store a new object as the server does: name, UID, times, and a pod's first status."""
        new = copy.deepcopy(document)
        metadata = new.setdefault("metadata", {})
        if resource.namespaced:
            metadata["namespace"] = namespace = metadata.get("namespace") or namespace or "default"
            self._check_namespace(namespace, metadata.get("name", ""))
        else:
            metadata.pop("namespace", None)
            namespace = ""
        if not metadata.get("name") and metadata.get("generateName"):
            self._named += 1
            metadata["name"] = f"{metadata['generateName']}{self._named:05}"
        if not metadata.get("name"):
            raise Refusal(422, "Invalid", "metadata.name: Required value: name or generateName is required")
        key = namespace, metadata["name"]
        if key in self.objects.get(resource, {}):
            raise Refusal(409, "AlreadyExists", f'{resource.plural} "{metadata["name"]}" already exists')
        metadata.update(uid=str(uuid4()), creationTimestamp=render_time(self.now()), generation=1)
        new.update(apiVersion=resource.api_version, kind=resource.kind)
        if resource is PODS:
            new["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        elif resource is NAMESPACES:
            new["status"] = {"phase": "Active"}
        return self._store(resource, key, new)

    def bind(self, name: str, namespace: str, node: str) -> Document:
        """Bind a pod to a node through its subresource, as schedulers do, and set PodScheduled."""
        new = copy.deepcopy(self.get(PODS, name, namespace))
        new["spec"]["nodeName"] = node
        new["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        return self._store(PODS, (namespace, name), new)

    def _check_namespace(self, namespace: str, name: str) -> None:
        found = self.find(NAMESPACES, namespace)
        if found is None and self.namespaces_must_exist:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        if found is not None and found["metadata"].get("deletionTimestamp"):
            raise Refusal(
                403,
                "Forbidden",
                f'"{name}" is forbidden: unable to create new content in namespace {namespace} '
                "because it is being terminated",
                causes=("NamespaceTerminating",),
            )

    def update(
        self,
        resource: Resource,
        document: Document,
        *,
        name: str,
        namespace: str = "",
        status: bool = False,
        applied: bool = False,
    ) -> Document:
        """Replace an object, or with `status` its status only. Fields that the server owns stay.

        An `applied` document has its managed fields; those of others follow from what changed.
        """
        old = self.get(resource, name, namespace)
        new = copy.deepcopy(document)
        metadata, before = new.setdefault("metadata", {}), old["metadata"]
        requested_version = metadata.get("resourceVersion")
        if requested_version not in (None, "", before["resourceVersion"]):
            raise Refusal(409, "Conflict", f'"{name}": the object has been modified; please apply your changes')
        if metadata.get("uid", before["uid"]) != before["uid"]:
            raise Refusal(409, "Conflict", f'"{name}": Precondition failed: UID')
        if status:
            new = copy.deepcopy(old) | {"status": new.get("status", {})}
        elif resource.kind in ("Pod", "Node", "Namespace", "PodDisruptionBudget", "Tenant", "ComputeCluster"):
            new["status"] = copy.deepcopy(old.get("status", {}))
        metadata = new["metadata"]
        for owned in ("uid", "creationTimestamp", "name", "namespace", "deletionTimestamp", "generation"):
            metadata.pop(owned, None)
            if owned in before:
                metadata[owned] = before[owned]
        if "deletionGracePeriodSeconds" in before:
            metadata["deletionGracePeriodSeconds"] = before["deletionGracePeriodSeconds"]
        metadata["resourceVersion"] = before["resourceVersion"]
        if not applied and "managedFields" in before:
            metadata["managedFields"] = after_update(old, new)
        if new == old:
            return old
        if new.get("spec") != old.get("spec"):
            metadata["generation"] = before.get("generation", 0) + 1
        key = before.get("namespace", ""), name
        stored = self._store(resource, key, new)
        if "deletionTimestamp" in before and not metadata.get("finalizers"):
            self._remove_if_over(resource, key)
        return stored

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str | None = None,
        version: str | None = None,
        grace: int | None = None,
    ) -> Document:
        """Delete an object as the server does: a bound pod waits for its kubelet, any object for its finalizers."""
        old = self.get(resource, name, namespace)
        before = old["metadata"]
        for what, wanted, current in (
            ("UID", uid, before["uid"]),
            ("ResourceVersion", version, before["resourceVersion"]),
        ):
            if wanted is not None and wanted != current:
                raise Refusal(409, "Conflict", f"Precondition failed: {what} in precondition: {wanted}, {current}")
        key = before.get("namespace", ""), name
        grace = self._grace_seconds(resource, old, grace)
        already = before.get("deletionGracePeriodSeconds")
        if "deletionTimestamp" not in before or (already is not None and grace < already):
            new = copy.deepcopy(old)
            due = self.now() + timedelta(seconds=grace)
            new["metadata"].update(deletionTimestamp=render_time(due), deletionGracePeriodSeconds=grace)
            if resource is NAMESPACES:
                new["status"] = {"phase": "Terminating"}
            if grace or new["metadata"].get("finalizers") or resource is NAMESPACES:
                old = self._store(resource, key, new)
            else:
                self._remove(resource, key)
                return new
        if resource is NAMESPACES:
            self._delete_contents(name)
        self._remove_if_over(resource, key)
        return old

    def _grace_seconds(self, resource: Resource, document: Document, requested_seconds: int | None) -> int:
        if resource is not PODS:
            return 0
        phase = document.get("status", {}).get("phase")
        if not document.get("spec", {}).get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        if requested_seconds is not None:
            return requested_seconds
        return int(document["spec"].get("terminationGracePeriodSeconds", 30))

    def _delete_contents(self, namespace: str) -> None:
        for resource, objects in list(self.objects.items()):
            for inside, name in list(objects):
                if resource.namespaced and inside == namespace and (inside, name) in objects:
                    self.delete(resource, name, namespace, grace=0)

    def _remove_if_over(self, resource: Resource, key: Key) -> None:
        metadata = self.objects.get(resource, {}).get(key, {}).get("metadata")
        if metadata is None or metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
            return
        if resource is NAMESPACES and any(
            namespace == key[1] for kept in self.objects.values() for namespace, _ in kept
        ):
            return
        self._remove(resource, key)

    def _store(self, resource: Resource, key: Key, new: Document) -> Document:
        if self._dry:
            return new
        objects = self.objects.setdefault(resource, {})
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)
        self._record(Change(self.version, resource, objects.get(key), new))
        objects[key] = new
        return new

    def _remove(self, resource: Resource, key: Key) -> None:
        self.version += 1
        self._record(Change(self.version, resource, self.objects[resource].pop(key), None))
        namespace = self.find(NAMESPACES, key[0]) if key[0] else None
        if namespace is not None and namespace["metadata"].get("deletionTimestamp"):
            self._remove_if_over(NAMESPACES, ("", key[0]))

    def _record(self, change: Change) -> None:
        self.history.append(change)
        self.wake()

    def wake(self) -> None:
        """Let every watch check for changes."""
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, version: int) -> list[Change]:
        """Return the changes after a version, in order."""
        return self.history[bisect_right(self.history, version, key=lambda change: change.version) :]

    def compact(self) -> None:
        """Drop the history, so that watchers must list again."""
        self.oldest = self.version
        self.history.clear()
