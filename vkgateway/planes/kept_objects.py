"""Objects of a template that tenants' admins cannot change for long: changed and deleted ones are restored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from vkgateway.api.names import FIELD_MANAGER, RESERVED_PREFIX
from vkgateway.api.objects import Meta, decode_object
from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource

KEPT_ANNOTATION: Final = f"{RESERVED_PREFIX}kept"
"""Annotation of a kept object in a template, with any value. Such an object must set every field."""

INITIAL_ANNOTATION: Final = f"{RESERVED_PREFIX}initial"
"""Annotation of an initial object in a template: it is created if missing, and otherwise belongs to the tenant."""

_IGNORED_FIELDS: Final = frozenset({"metadata", "status"})

_ADMISSION_GROUP: Final = "admissionregistration.k8s.io"
_ADMISSION_KINDS: Final = {
    "MutatingWebhookConfiguration": ("v1",),
    "MutatingAdmissionPolicyBinding": ("v1", "v1beta1"),
    "MutatingAdmissionPolicy": ("v1", "v1beta1"),
    "ValidatingAdmissionPolicyBinding": ("v1",),
    "ValidatingAdmissionPolicy": ("v1",),
}
"""Kinds that can gate or refuse pods, with the versions in which releases serve them."""

Object = dict[str, Any]


class _PolicyStatus(msgspec.Struct, rename="camel"):
    observed_generation: int = 0


class _Policy(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    metadata: Meta
    status: _PolicyStatus = msgspec.field(default_factory=_PolicyStatus)


_decode_policy: Final = msgspec.json.Decoder(_Policy).decode


def kept_objects(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that are kept."""
    return [found for found in objects if KEPT_ANNOTATION in (found["metadata"].get("annotations") or {})]


def is_initial(wanted: Object) -> bool:
    """Return whether an object is created only if missing, and otherwise belongs to the tenant."""
    return INITIAL_ANNOTATION in (wanted["metadata"].get("annotations") or {})


async def create_missing(client: Client, objects: Iterable[Object]) -> None:
    """Create the initial objects that do not exist. Raises ApiError."""
    discovery = Discovery(client)
    for wanted in filter(is_initial, objects):
        resource = await discovery.get_resource(wanted["apiVersion"], wanted["kind"])
        name, namespace = wanted["metadata"]["name"], wanted["metadata"].get("namespace")
        try:
            await client.get(resource, name, namespace=namespace)
        except errors.NotFound:
            with contextlib.suppress(errors.AlreadyExists):
                await client.create(resource, wanted, namespace=namespace)


async def skip_type_checks(client: Client, stored: Iterable[bytes]) -> None:
    """Mark the admission policies among stored objects as observed, so that no controller checks their types.

    For that check, the controller-manager downloads the OpenAPI documents that the API server must build: 1.8 s of CPU
    for each new tenant, more than half of what its API server needs to start. The result would be warnings in the
    status, which a tenant cannot act upon. Raises ApiError.
    """
    discovery = Discovery(client)
    for found in map(_decode_policy, stored):
        if found.kind == "ValidatingAdmissionPolicy" and found.status.observed_generation < found.metadata.generation:
            resource = await discovery.get_resource(found.api_version, found.kind)
            status = {"status": {"observedGeneration": found.metadata.generation}}
            await client.patch(resource, found.metadata.name, status, subresource="status")


async def restore_objects(client: Client, objects: Iterable[Object]) -> list[str]:
    """Restore each object; return the ones that had changed, as `Kind/name`.

    Replaces whole objects, since fields that others added would survive an apply. Writes nothing if nothing differs.
    Raises ApiError.
    """
    discovery = Discovery(client)
    changed = []
    for wanted in objects:
        resource = await discovery.get_resource(wanted["apiVersion"], wanted["kind"])
        if await _restore_object(client, resource, wanted):
            changed.append(f"{wanted['kind']}/{wanted['metadata']['name']}")
    return changed


async def delete_obsolete(client: Client, objects: Iterable[Object]) -> list[str]:
    """Delete admission objects that were kept earlier but are not in `objects`; return them as `Kind/name`.

    An upgrade may replace a webhook with a policy, or a template may drop a gate. Without this, a tenant would keep
    both. Raises ApiError.
    """
    discovery = Discovery(client)
    wanted = {(one["kind"], one["metadata"]["name"]) for one in objects}
    removed = []
    for kind, versions in _ADMISSION_KINDS.items():
        resource = await _find_served_resource(discovery, kind, versions)
        page = await client.list_all(resource) if resource is not None else None
        for found in (decode_object(bytes(item)).metadata for item in (page.items if page is not None else ())):
            if KEPT_ANNOTATION in found.annotations and (kind, found.name) not in wanted:
                assert resource is not None
                await client.delete(resource, found.name, uid=found.uid)
                removed.append(f"{kind}/{found.name}")
    return removed


async def _find_served_resource(discovery: Discovery, kind: str, versions: Iterable[str]) -> Resource | None:
    """Return the kind in the first version that the server serves."""
    for version in versions:
        with contextlib.suppress(errors.NotFound):
            return await discovery.get_resource(f"{_ADMISSION_GROUP}/{version}", kind)
    return None


async def _restore_object(client: Client, resource: Resource, wanted: Object) -> bool:
    name, namespace = wanted["metadata"]["name"], wanted["metadata"].get("namespace")
    try:
        found = msgspec.json.decode(await client.get(resource, name, namespace=namespace))
    except errors.NotFound:
        await client.patch(resource, name, wanted, kind="apply", namespace=namespace, field_manager=FIELD_MANAGER)
        return True
    if _without_metadata(found) == _without_metadata(wanted):
        return False
    version = found["metadata"]["resourceVersion"]
    body = {**wanted, "metadata": {**wanted["metadata"], "resourceVersion": version}}
    stored = msgspec.json.decode(await client.replace(resource, name, body, namespace=namespace))
    # A newer server fills in fields that the template does not know; such a replace changes nothing.
    return bool(stored["metadata"]["resourceVersion"] != version)


def _without_metadata(found: Object) -> Object:
    return {key: value for key, value in found.items() if key not in _IGNORED_FIELDS}
