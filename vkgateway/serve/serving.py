"""TLS servers of the gateway, with certificates that are renewed daily: the kubelet endpoint, and metrics and state."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import structlog

from vkgateway.api.errors import InputError
from vkgateway.kube.tls import load_identity
from vkgateway.nodes.identity import server_context
from vkgateway.planes.pki import Authority, KeyPair
from vkgateway.runtime.background import background_task
from vkgateway.serve import authorization
from vkgateway.serve.addresses import GatewayAddress, is_unspecified
from vkgateway.serve.dependencies import Dependencies
from vkgateway.settings.config import Observability
from vkgateway.tenants.metrics import record_certificate

log = structlog.get_logger(__name__)

RENEW_SECONDS = 24 * 3600.0


@contextlib.asynccontextmanager
async def serve_metrics(settings: Observability, shared: Dependencies) -> AsyncIterator[None]:
    """Serve metrics and state over TLS within the block; the certificate is renewed daily."""
    listen = settings.secure_address or shared.address.listen

    def pair() -> tuple[bytes, bytes]:
        if settings.cert:
            return Path(settings.cert).read_bytes(), Path(settings.key).read_bytes()
        extra = () if is_unspecified(listen) else (listen,)
        issued = issue_certificate(shared.authorities.kubelet, shared.address, extra=extra)
        return issued.cert_pem, issued.key_pem

    try:
        cert, key = pair()
    except OSError as error:
        raise InputError(f"observability.cert: cannot read {error.filename}: {error.strerror}") from error
    tls = authorization.server_context(cert=cert, key=key)
    record_certificate("metrics", cert)
    async with (
        authorization.metrics_listener(shared.management, shared.health.answer_request, tls=tls) as listener,
        renew_certificate(tls, pair, name="metrics"),
    ):
        await listener.listen_tcp(listen, settings.secure_port)
        yield


@contextlib.asynccontextmanager
async def kubelet_tls(kubelet_authority: Authority, address: GatewayAddress) -> AsyncIterator[ssl.SSLContext]:
    """Yield the TLS context of the kubelet endpoint; its certificate is renewed daily within the block."""

    def pair() -> tuple[bytes, bytes]:
        issued = issue_certificate(kubelet_authority, address)
        return issued.cert_pem, issued.key_pem

    cert, key = pair()
    context = server_context(ca=kubelet_authority.cert_pem, cert=cert, key=key)
    record_certificate("kubelet", cert)
    async with renew_certificate(context, pair, name="kubelet"):
        yield context


@contextlib.asynccontextmanager
async def renew_certificate(
    context: ssl.SSLContext, pair: Callable[[], tuple[bytes, bytes]], *, name: str
) -> AsyncIterator[None]:
    """Load a server's certificate and key again every day within the block; `name` is that of its metric."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                cert, key = pair()
                load_identity(context, cert=cert, key=key)
                record_certificate(name, cert)
            except (OSError, InputError) as error:
                # For example a full disk; the current certificate is valid for much longer than a day.
                log.error("serving certificate not renewed", error=str(error))

    async with background_task(renew(), name="renew-serving-certificate"):
        yield


def issue_certificate(kubelet_authority: Authority, address: GatewayAddress, *, extra: Sequence[str] = ()) -> KeyPair:
    """Issue a serving certificate for the gateway's addresses and the IP addresses `extra`."""
    ips = tuple(dict.fromkeys((*address.certificate_ips, *extra)))
    return kubelet_authority.issue("vkgateway", ips=ips, dns=address.certificate_names, server=True)
