"""The gateway's own authority: it signs the kubelet endpoint's certificate and those by which tenants call it."""

from __future__ import annotations

import base64

import msgspec
import structlog

from vkgateway.controlplane.pki import Authority
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import SYSTEM_NAMESPACE

log = structlog.get_logger(__name__)

SECRET_NAME = "gateway-authority"  # noqa: S105 - the name of a Secret, not one
_CERT, _KEY = "ca.crt", "ca.key"


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}


async def ensure_authority(client: Client) -> Authority:
    """Return the authority from its Secret in the system namespace; the first to come makes it.

    Raises VkgatewayError where the Secret is there but holds none: replacing it would cut every tenant off, so that
    is left to people.
    """
    try:
        return _decode_secret(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    except errors.NotFound:
        authority = Authority.create("vkgateway kubelet authority")
    try:
        await client.create(SECRETS, _secret_manifest(authority), namespace=SYSTEM_NAMESPACE)
    except errors.AlreadyExists:
        return _decode_secret(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    log.info("made the gateway's authority", secret=f"{SYSTEM_NAMESPACE}/{SECRET_NAME}")
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


def _decode_secret(answer: bytes) -> Authority:
    data = msgspec.json.decode(answer, type=_Secret).data
    try:
        return Authority.from_pem(base64.b64decode(data[_CERT]), base64.b64decode(data[_KEY]))
    except (KeyError, ValueError) as error:
        raise VkgatewayError(
            f"Secret {SYSTEM_NAMESPACE}/{SECRET_NAME} holds no authority: {error}",
            hint="Restore it, or delete it to have a new one made; then every tenant's API server starts anew.",
        ) from error
