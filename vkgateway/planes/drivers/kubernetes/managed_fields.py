"""Which fields of an object the gateway manages, as the API server records it.

A client that changes or removes a field takes it away from its manager. So another set of managed fields means that
another client changed one of them, whatever defaults the API server added.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from vkgateway.api.names import FIELD_MANAGER
from vkgateway.api.objects import Meta


class _Entry(msgspec.Struct, rename="camel"):
    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str = ""
    fields_v1: dict[str, Any] = {}


class _ManagedMeta(Meta, rename="camel"):
    managed_fields: tuple[_Entry, ...] = ()


class _Object(msgspec.Struct):
    metadata: _ManagedMeta


class ManagedObject(msgspec.Struct, frozen=True):
    """Metadata of an object, a digest of the fields that the gateway manages, and the last other client."""

    metadata: Meta
    fields: str
    is_managed: bool = True
    """Whether the gateway has applied the object, and still manages a field of it."""
    other_client: str = ""

    @property
    def version(self) -> int:
        """Resource version as a number, to compare two states of the object (KEP-5504)."""
        return int(self.metadata.resource_version or 0)


_decode: Final = msgspec.json.Decoder(_Object).decode


def decode_managed(body: bytes) -> ManagedObject:
    """Decode an object; its contents are not kept."""
    metadata = _decode(body).metadata
    entries, metadata.managed_fields = metadata.managed_fields, ()
    own = [entry for entry in entries if entry.manager == FIELD_MANAGER and entry.operation == "Apply"]
    others = [entry for entry in entries if entry not in own and not entry.subresource]
    fields = msgspec.json.encode([entry.fields_v1 for entry in own], order="deterministic")
    latest = max(others, key=lambda entry: entry.time, default=_Entry())
    return ManagedObject(metadata, hashlib.sha256(fields).hexdigest()[:16], bool(own), latest.manager)
