"""Names of the objects that represent gangs at the schedulers of compute clusters.

A name depends on the gang alone, so a restarted gateway finds its objects, and two attempts of a gang cannot exist at
the same time: the API server refuses the second one.
"""

from __future__ import annotations

import hashlib
from typing import Final

from vkgateway.api.names import SCHEDULING_MODE

MODE_LABEL: Final = SCHEDULING_MODE
"""On every object that the gateway creates for a scheduler: the mode. Objects without it are never touched."""
TENANT_ANNOTATION: Final = "vkgateway.io/gang-tenant"
GANG_ANNOTATION: Final = "vkgateway.io/gang-id"
DIGEST_ANNOTATION: Final = "vkgateway.io/digest"
"""On the object of an attempt: its tenant, its gang, and the digest of what it asks for."""
_HASH_LENGTH: Final = 20
_TENANT_MAX: Final = 32


def gang_namespace(gang: str) -> str:
    """Return the tenant namespace of a gang, by its ID `TENANT/NAMESPACE/SOURCE/NAME`."""
    return gang.split("/")[1]


def attempt_name(tenant: str, gang: str, surplus_uid: str = "") -> str:
    """Return the name of a gang's attempt, or of the attempt for one more pod of it."""
    digest = hashlib.sha256(f"{gang}\n{surplus_uid}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{tenant[:_TENANT_MAX]}-{digest}"
