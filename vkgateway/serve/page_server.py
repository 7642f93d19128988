"""Server of the page: HTTP on loopback, TLS on any other address, with the gateway as its source."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.kinds.pods.startup_metrics import STATISTICS
from vkgateway.kube.client import Client
from vkgateway.nodes.listener import HttpListener
from vkgateway.nodes.token_reviewer import TokenReviewer
from vkgateway.page.access import PageAccess
from vkgateway.page.cookies import CookieSealer
from vkgateway.page.handler import STREAMS, PageHandler
from vkgateway.page.hub import PageHub
from vkgateway.page.static_files import load_files
from vkgateway.runtime.background import background_task
from vkgateway.serve.addresses import is_unspecified
from vkgateway.serve.authorization import server_context
from vkgateway.serve.dependencies import Dependencies
from vkgateway.serve.gateway import Gateway
from vkgateway.serve.serving import issue_certificate, renew_certificate
from vkgateway.settings.config import Page
from vkgateway.tenants.metrics import record_certificate

_CONNECTIONS: Final = STREAMS + 128
_CERTIFICATE: Final = "page"
_PORT_HINT: Final = "Set page.port to another port, or to 0 for any free port, or page.enabled to false."


@contextlib.asynccontextmanager
async def serve_page(settings: Page, shared: Dependencies, gateway: Gateway) -> AsyncIterator[None]:
    """Serve the page within the block."""
    async with contextlib.AsyncExitStack() as stack:
        tls = await stack.enter_async_context(_page_tls(settings, shared)) if _needs_tls(settings) else None
        hub = PageHub(gateway)
        sealer = CookieSealer(shared.authorities.kubelet.key_pem)

        def client_of(tenant: str) -> Client:
            return gateway.running_tenants.client_of(tenant) if tenant else shared.management

        handler = PageHandler(
            access=PageAccess(TokenReviewer(client_of, uid_of=gateway.tenants.uid_of), sealer, secure=tls is not None),
            sealer=sealer,
            hub=hub,
            source=gateway,
            files=load_files(),
            usage=gateway.usage.encode_report,
            starts=lambda: msgspec.json.encode(STATISTICS.report()),
            secure=tls is not None,
            documentation=settings.documentation,
        )
        listener = HttpListener(handler, name="page", tls=tls, connections=_CONNECTIONS, hint=_PORT_HINT)
        await stack.enter_async_context(listener)
        await stack.enter_async_context(background_task(hub.run(), name="page"))
        await listener.listen_tcp(settings.address, settings.port)
        yield


def _needs_tls(settings: Page) -> bool:
    return bool(settings.cert) or not ipaddress.ip_address(settings.address).is_loopback


@contextlib.asynccontextmanager
async def _page_tls(settings: Page, shared: Dependencies) -> AsyncIterator[ssl.SSLContext]:
    """Yield the TLS context; its certificate is read or issued again daily within the block."""

    def pair() -> tuple[bytes, bytes]:
        if settings.cert:
            return Path(settings.cert).read_bytes(), Path(settings.key).read_bytes()
        extra = () if is_unspecified(settings.address) else (settings.address,)
        issued = issue_certificate(shared.authorities.kubelet, shared.address, extra=extra)
        return issued.cert_pem, issued.key_pem

    try:
        cert, key = pair()
    except OSError as error:
        raise InputError(f"page.cert: cannot read {error.filename}: {error.strerror}") from error
    tls = server_context(cert=cert, key=key)
    record_certificate(_CERTIFICATE, cert)
    async with renew_certificate(tls, pair, name=_CERTIFICATE):
        yield tls
