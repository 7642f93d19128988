"""What the objects of all schedulers have in common: their metadata, and the digest of what they ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from vkgateway.api.names import POOL_LABEL, TENANT_LABEL
from vkgateway.api.objects import Meta, Object
from vkgateway.api.times import parse_seconds
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.backends.names import DIGEST_ANNOTATION, GANG_ANNOTATION, MODE_LABEL, TENANT_ANNOTATION

_NONE: Mapping[str, str] = {}


def attempt_metadata(
    request: Request, spec: Object, *, mode: str, namespace: str, annotations: Mapping[str, str] = _NONE
) -> Object:
    """Return the metadata of the object with this spec that represents an attempt; `annotations` are added."""
    gang = request.gang
    return {
        "name": request.name,
        "namespace": namespace,
        "labels": {MODE_LABEL: mode, TENANT_LABEL: gang.tenant, POOL_LABEL: gang.pools[0][1]},
        "annotations": {
            TENANT_ANNOTATION: gang.tenant,
            GANG_ANNOTATION: gang.id,
            DIGEST_ANNOTATION: spec_digest(spec),
            **annotations,
        },
    }


def spec_digest(spec: Object) -> str:
    """Return the digest of the spec of an attempt's object."""
    return hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).hexdigest()[:16]


def read_object(metadata: Meta, cluster: str, **state: Any) -> Attempt:
    """Return the attempt that an object with this metadata represents; `state` are the fields that its status shows."""
    return Attempt(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        tenant=metadata.annotations.get(TENANT_ANNOTATION, ""),
        pool=(cluster, metadata.labels.get(POOL_LABEL, "")),
        digest=metadata.annotations.get(DIGEST_ANNOTATION, ""),
        created=parse_seconds(metadata.creation_timestamp),
        **state,
    )
