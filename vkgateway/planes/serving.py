"""Waits until the API server of a control plane is ready, and serves a certificate for all its names."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Protocol

from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import Clock
from vkgateway.kube.tls import client_context
from vkgateway.planes.drivers.base import Driver, ServerEndpoint
from vkgateway.planes.pki import alternative_names
from vkgateway.planes.plane import ControlPlaneSpec

_SERVING_SECONDS = 60.0
_POLL_SECONDS = 0.05
_CERTIFICATE_POLL_SECONDS = 0.2
_HANDSHAKE_SECONDS = 5.0
_FAILURE_CHECK_SECONDS = 1.0


class FindMissing(Protocol):
    """How the names that a server lacks are found: `find_missing_names`, or a fake in tests."""

    async def __call__(self, server: ServerEndpoint, *, ca: bytes, names: tuple[str, ...]) -> frozenset[str]:
        """See `find_missing_names`."""


async def wait_until_ready(
    client: Client, plane: ControlPlaneSpec, *, driver: Driver, clock: Clock, exclude: str = ""
) -> None:
    """Wait until the API server is ready, apart from the check `exclude`.

    Raises:
        UnavailableError: the API server does not run, for the reason that the driver reports, or is not ready in time.
    """
    params = {"exclude": exclude} if exclude else None
    started = checked = clock.monotonic()
    while True:
        try:
            await client.request("GET", "/readyz", params=params, timeout=5)
            return
        except errors.ApiError as error:
            failure = error
        now = clock.monotonic()
        if now - checked >= _FAILURE_CHECK_SECONDS:
            checked = now
            if reason := await driver.failure_reason(plane):
                raise UnavailableError(reason)
        if now - started >= _SERVING_SECONDS:
            raise UnavailableError(
                f"the API server of {plane.cluster!r} is not ready after {_SERVING_SECONDS:.0f} s: {failure}"
            ) from failure
        await clock.sleep(_POLL_SECONDS)


async def wait_for_names(
    plane: ControlPlaneSpec, *, ca: bytes, driver: Driver, clock: Clock, find_missing: FindMissing
) -> None:
    """Wait until each running API server serves a certificate with the names that are added to those of every cluster.

    A server reads a new certificate a moment after it was delivered. Before that, clients at a new address would fail.

    Raises:
        UnavailableError: a server does not serve it in time.
    """
    if not plane.added_names:
        return
    endpoint = ServerEndpoint(plane.address, plane.port)
    started = clock.monotonic()
    while True:
        missing: frozenset[str] = frozenset()
        for server in await driver.endpoints.running(plane.cluster, endpoint=endpoint):
            missing |= await find_missing(server, ca=ca, names=plane.added_names)
        if not missing:
            return
        if clock.monotonic() - started >= _SERVING_SECONDS:
            raise UnavailableError(
                f"the API server of {plane.cluster!r} serves no certificate for {', '.join(sorted(missing))} "
                f"after {_SERVING_SECONDS:.0f} s"
            )
        await clock.sleep(_CERTIFICATE_POLL_SECONDS)


async def find_missing_names(server: ServerEndpoint, *, ca: bytes, names: tuple[str, ...]) -> frozenset[str]:
    """Return the DNS names and IP addresses that the certificate of a server lacks; all if it does not answer."""
    context = client_context(ca=ca)
    context.check_hostname = False
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            _, writer = await asyncio.open_connection(server.address, server.port, ssl=context)
    except (OSError, TimeoutError):
        return frozenset(names)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return frozenset(names) - alternative_names(ssl.DER_cert_to_PEM_cert(certificate).encode())
