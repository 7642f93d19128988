"""The gateway's certificate authority, which signs the kubelet endpoint's serving and client certificates."""

from __future__ import annotations

import base64

import structlog

from vkgateway.controlplane.pki import Authority
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import SYSTEM_NAMESPACE
from vkgateway.model.objects import decode_secret

log = structlog.get_logger(__name__)

SECRET_NAME = "gateway-authority"  # noqa: S105 - the name of a Secret, not one
_CERT, _KEY = "ca.crt", "ca.key"


async def ensure_authority(client: Client) -> Authority:
    """Return the authority from its Secret in the system namespace, creating the Secret if necessary.

    Raises VkgatewayError if the Secret exists but holds no authority. The gateway does not replace it: that would
    disconnect every tenant.
    """
    try:
        return _decode_authority(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    except errors.NotFound:
        authority = Authority.create("vkgateway kubelet authority")
    try:
        await client.create(SECRETS, _secret_manifest(authority), namespace=SYSTEM_NAMESPACE)
    except errors.AlreadyExists:
        return _decode_authority(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    log.info("created the gateway's certificate authority", secret=f"{SYSTEM_NAMESPACE}/{SECRET_NAME}")
    return authority


def _secret_manifest(authority: Authority) -> dict[str, object]:
    data = {_CERT: authority.cert_pem, _KEY: authority.key_pem}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET_NAME, "namespace": SYSTEM_NAMESPACE},
        "type": "Opaque",
        "data": {name: base64.b64encode(pem).decode() for name, pem in data.items()},
    }


def _decode_authority(answer: bytes) -> Authority:
    data = decode_secret(answer).data
    try:
        return Authority.from_pem(base64.b64decode(data[_CERT]), base64.b64decode(data[_KEY]))
    except (KeyError, ValueError) as error:
        raise VkgatewayError(
            f"Secret {SYSTEM_NAMESPACE}/{SECRET_NAME} holds no certificate authority: {error}",
            hint="Restore the Secret, or delete it to create a new authority; then every tenant's API server restarts.",
        ) from error
