"""Links that sign a browser in to the page: where the page is, and a short-lived token."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.cluster_gateway import request_token
from vkgateway.page.local_host import local_address

if TYPE_CHECKING:
    from vkgateway.kube.client import Client
    from vkgateway.settings.config import Config

TOKEN_SECONDS: Final = 8 * 3600
"""Lifetime of the token, and so of the session."""
_TENANT_ACCOUNT: Final = "vkgateway-page-reader"
_TENANT_NAMESPACE: Final = "kube-system"
_SCHEMES: Final = ("http://", "https://")


def local_page(settings: Config) -> str:
    """Return the URL of the page of a gateway on this machine. Raises UnavailableError if it is off."""
    page = settings.page
    if not page.enabled:
        raise UnavailableError("the gateway's page is off", hint="Set page.enabled in gateway.yaml.")
    address = ipaddress.ip_address(page.address)
    if address.is_loopback and not page.cert:
        return local_address(page.port)
    host = settings.address or "127.0.0.1" if address.is_unspecified else page.address
    return f"https://{f'[{host}]' if ':' in host else host}:{page.port}"


def checked_url(url: str) -> str:
    """Return a given URL of the page without its path. Raises InputError."""
    if not url.startswith(_SCHEMES):
        raise InputError(f"--url {url!r} is not a valid address", hint=f"Use https://HOST, or {local_address(9633)}.")
    return url.rstrip("/").removesuffix("/ui")


def page_link(url: str, *, token: str = "", tenant: str = "", reader: str = "") -> str:
    """Return the link that opens the page at `url`. The token is behind `#`, which browsers send to no server.

    `reader` is the name that the page shows instead of that of the token's service account. It gives no rights.
    """
    given = {key: value for key, value in (("tenant", tenant), ("reader", reader), ("token", token)) if value}
    return f"{url}/ui/#{urlencode(given)}" if given else f"{url}/ui/"


async def tenant_token(client: Client, tenant: str) -> str:
    """Return a token that may read the tenant's page. Raises UnavailableError."""
    from vkgateway.kube import errors

    hint = "Recreate it with the objects of the tenant's template, or sign in with another token."
    try:
        return await request_token(
            client, _TENANT_ACCOUNT, namespace=_TENANT_NAMESPACE, seconds=TOKEN_SECONDS, hint=hint
        )
    except errors.Forbidden as error:
        raise UnavailableError(
            f"the user may not create a token for the page of {tenant}: {error.message}",
            hint="Sign in with a token of your own, if you have the ClusterRole view: vkgateway ui --no-token.",
        ) from error
