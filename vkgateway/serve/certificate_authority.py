"""Certificate authorities of the gateway in Secrets: that of the kubelet endpoint, and that of a managed etcd."""

from __future__ import annotations

import base64

import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import decode_secret
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import SECRETS
from vkgateway.planes.pki import Authority

log = structlog.get_logger(__name__)

SECRET_NAME = "gateway-authority"  # noqa: S105 - the name of a Secret, not one
_CERT, _KEY = "ca.crt", "ca.key"


async def ensure_authority(
    client: Client,
    *,
    name: str = SECRET_NAME,
    namespace: str = SYSTEM_NAMESPACE,
    common_name: str = "vkgateway kubelet authority",
) -> Authority:
    """Return the authority from its Secret, creating the Secret if necessary.

    By default, it is the authority that signs the kubelet endpoint's serving and client certificates.

    Raises:
        UnavailableError: the Secret exists but holds no authority. The gateway does not replace it: that would
            disconnect every tenant.
        ApiError: the management cluster is not available, or refuses.
    """
    where = f"{namespace}/{name}"
    try:
        return _decode_authority(await client.get(SECRETS, name, namespace=namespace), where=where)
    except errors.NotFound:
        authority = Authority.create(common_name)
    try:
        await client.create(SECRETS, _secret_manifest(authority, name, namespace), namespace=namespace)
    except errors.AlreadyExists:
        return _decode_authority(await client.get(SECRETS, name, namespace=namespace), where=where)
    log.info("created a certificate authority", secret=where, subject=common_name)
    return authority


def _secret_manifest(authority: Authority, name: str, namespace: str) -> dict[str, object]:
    data = {_CERT: authority.cert_pem, _KEY: authority.key_pem}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": "Opaque",
        "data": {key: base64.b64encode(pem).decode() for key, pem in data.items()},
    }


def _decode_authority(answer: bytes, *, where: str) -> Authority:
    data = decode_secret(answer).data
    try:
        return Authority.from_pem(base64.b64decode(data[_CERT]), base64.b64decode(data[_KEY]))
    except (KeyError, ValueError) as error:
        raise UnavailableError(
            f"Secret {where} holds no certificate authority: {error}",
            hint="Restore the Secret, or delete it to create a new authority; then every tenant's API server restarts.",
        ) from error
