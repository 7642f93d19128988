"""ID of the gateway in a Secret, by which gateways that share a compute cluster distinguish their tenants."""

from __future__ import annotations

import base64
import secrets
from typing import Final

import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import decode_secret
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS

log = structlog.get_logger(__name__)

SECRET_NAME: Final = "gateway-identity"  # noqa: S105 - the name of a Secret, not one
_KEY: Final = "id"


async def ensure_identity(client: Client) -> str:
    """Return the gateway's ID from its Secret, creating the Secret if necessary.

    A backup of the namespace contains it, so that a gateway which moves to another management cluster stays the owner
    of its tenants.

    Raises:
        UnavailableError: the Secret exists but holds no ID.
        ApiError: the management cluster is not available, or refuses.
    """
    try:
        return _decode_identity(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    except errors.NotFound:
        identity = secrets.token_hex(16)
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET_NAME, "namespace": SYSTEM_NAMESPACE},
        "type": "Opaque",
        "data": {_KEY: base64.b64encode(identity.encode()).decode()},
    }
    try:
        await client.create(SECRETS, manifest, namespace=SYSTEM_NAMESPACE)
    except errors.AlreadyExists:
        return _decode_identity(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    log.info("created the gateway's ID", secret=f"{SYSTEM_NAMESPACE}/{SECRET_NAME}", id=identity)
    return identity


def _decode_identity(answer: bytes) -> str:
    try:
        identity = base64.b64decode(decode_secret(answer).data[_KEY]).decode("ascii").strip()
    except (KeyError, ValueError):
        identity = ""
    if not identity:
        raise UnavailableError(
            f"Secret {SYSTEM_NAMESPACE}/{SECRET_NAME} holds no ID under the key {_KEY!r}",
            hint="Restore the Secret. A new ID is not the owner of the tenants in compute clusters.",
        )
    return identity
