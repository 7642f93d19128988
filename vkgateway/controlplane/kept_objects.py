"""Objects of a template that stay as they are: what the tenant's admins changed or deleted of them is put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource
from vkgateway.model.names import FIELD_MANAGER, RESERVED_PREFIX
from vkgateway.model.objects import decode_object

KEPT_ANNOTATION: Final = f"{RESERVED_PREFIX}kept"
"""A template's object with this annotation, whatever it says, is kept. Such an object spells every field out."""

INITIAL_ANNOTATION: Final = f"{RESERVED_PREFIX}initial"
"""A template's object with this annotation is created wherever it does not exist, and is otherwise the tenant's."""

_IGNORED_FIELDS: Final = frozenset({"metadata", "status"})

_ADMISSION_GROUP: Final = "admissionregistration.k8s.io"
_ADMISSION_KINDS: Final = {
    "MutatingWebhookConfiguration": ("v1",),
    "MutatingAdmissionPolicyBinding": ("v1", "v1beta1"),
    "MutatingAdmissionPolicy": ("v1", "v1beta1"),
    "ValidatingAdmissionPolicyBinding": ("v1",),
    "ValidatingAdmissionPolicy": ("v1",),
}
"""What may gate or refuse pods, by kind with the versions in which releases have it."""

Object = dict[str, Any]


def kept_objects(objects: Iterable[Object]) -> list[Object]:
    """Choose the objects that are kept."""
    return [found for found in objects if KEPT_ANNOTATION in (found["metadata"].get("annotations") or {})]


def is_initial(wanted: Object) -> bool:
    """Whether an object of a template is created where it does not exist, and otherwise left to the tenant."""
    return INITIAL_ANNOTATION in (wanted["metadata"].get("annotations") or {})


async def create_missing(client: Client, objects: Iterable[Object]) -> None:
    """Create those of these objects that are initial and do not exist. Raises ApiError."""
    discovery = Discovery(client)
    for wanted in filter(is_initial, objects):
        resource = await discovery.get_resource(wanted["apiVersion"], wanted["kind"])
        name, namespace = wanted["metadata"]["name"], wanted["metadata"].get("namespace")
        try:
            await client.get(resource, name, namespace=namespace)
        except errors.NotFound:
            with contextlib.suppress(errors.AlreadyExists):
                await client.create(resource, wanted, namespace=namespace)


async def restore_objects(client: Client, objects: Iterable[Object]) -> list[str]:
    """Bring each object to what it should be; returns those that were not, as `Kind/name`.

    Whole objects are replaced: what others added would survive an apply. Nothing is written where nothing differs.
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
    """Delete what gates or refuses pods and was kept once, but is none of these objects; returns it, as `Kind/name`.

    A tenant that is upgraded to a release in which a policy does what a webhook did, or whose template leaves the gate
    out by now, would have both for ever. Raises ApiError.
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
    """The kind in the first version that the server has."""
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
    # A server that knows more fields than the template fills them in, and then changes nothing.
    return bool(stored["metadata"]["resourceVersion"] != version)


def _without_metadata(found: Object) -> Object:
    return {key: value for key, value in found.items() if key not in _IGNORED_FIELDS}
