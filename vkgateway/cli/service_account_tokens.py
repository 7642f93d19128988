"""Short-lived tokens of service accounts, which commands mint with the rights of their user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vkgateway.api.errors import UnavailableError

if TYPE_CHECKING:
    from vkgateway.kube.client import Client


class _TokenStatus(msgspec.Struct):
    token: str


class _TokenRequest(msgspec.Struct):
    status: _TokenStatus


async def request_token(client: Client, account: str, *, namespace: str, seconds: int, hint: str) -> str:
    """Return a token of a service account that is valid for this many seconds.

    Raises:
        UnavailableError: the account does not exist; `hint` is the way out.
        Forbidden: the user may not create tokens of it.
    """
    from vkgateway.kube import errors
    from vkgateway.kube.resources import SERVICE_ACCOUNTS

    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    try:
        answer = await client.create(SERVICE_ACCOUNTS, request, namespace=namespace, name=account, subresource="token")
    except errors.NotFound as error:
        raise UnavailableError(f"service account {namespace}/{account} does not exist", hint=hint) from error
    return msgspec.json.decode(answer, type=_TokenRequest).status.token
