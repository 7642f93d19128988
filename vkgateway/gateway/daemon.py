"""The daemon: from the settings to a gateway that runs, and from a signal to the last connection closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TypeVar

import structlog

from vkgateway.controlplane.etcd.errors import SPACE_EXCEEDED
from vkgateway.controlplane.pki import Authority, KeyPair
from vkgateway.gateway import alone, authorised, authority, heap, logs, prerequisites
from vkgateway.gateway.config import Config, Observability, gateway_socket
from vkgateway.gateway.connections import connect, primary_address
from vkgateway.gateway.datastore import LazyDatastore, etcd_authority
from vkgateway.gateway.gateway import Gateway
from vkgateway.gateway.health import HealthServer
from vkgateway.gateway.names import retiring
from vkgateway.gateway.provisioning import provisioned
from vkgateway.gateway.roomkeeping import Datastore
from vkgateway.kube import errors, yamltext
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.client import Client
from vkgateway.kube.tls import load_identity
from vkgateway.kubelet.identity import server_context
from vkgateway.model.errors import InputError, VkgatewayError
from vkgateway.programs.filelimit import raise_file_limit
from vkgateway.version import __version__

log = structlog.get_logger(__name__)
T = TypeVar("T")

_COLLECT_AFTER = 10_000
"""Objects more than before after which the youngest generation is collected; Python's own is 700, or 2,000."""
RENEW_SECONDS = 24 * 3600.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def serve(settings: Config) -> None:
    """Run the gateway until a signal tells it to stop; raises VkgatewayError where it cannot begin."""
    logs.configure(settings.logging)
    tune_collector()
    heap.keep_large_apart()
    files = raise_file_limit()
    log.info("gateway starts", version=__version__, files=files)
    work = asyncio.create_task(_work(settings, files=files), name="gateway")
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("gateway stopped")
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


def tune_collector() -> None:
    """Have the garbage collector look less often, and never at what was imported.

    What is kept by the thousand makes no cycles, and a full collection would hold everything up for longer than all
    work on a pod takes.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 10, 20)


async def _work(settings: Config, *, files: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        name = stack.enter_context(alone.identity(Path(settings.data_dir)))
        patience = Patience()
        health = await stack.enter_async_context(beginning(settings, patience))
        management = await stack.enter_async_context(connect(settings, name="the management cluster"))
        datastore_authority = etcd_authority(settings.datastore)
        datastore = await stack.enter_async_context(LazyDatastore.of(settings.datastore, authority=datastore_authority))
        sole = alone.lease(management, name=name)
        first = partial(patience.first, remedy=lambda: reopen(datastore))
        await first(lambda: alone.take(sole, management=management))
        await stack.enter_async_context(alone.kept(sole))
        await first(lambda: prepare(management))
        kubelet_authority = await patience.first(lambda: authority.ensure(management))
        address = settings.address or primary_address()
        planes = provisioned(
            settings,
            management=management,
            datastore=datastore,
            datastore_authority=datastore_authority,
            kubelet_authority=kubelet_authority,
            address=address,
        )
        tls = await stack.enter_async_context(serving(kubelet_authority, address))
        await stack.enter_async_context(
            metrics_served(
                settings.observability,
                address=settings.observability.secure_address or address,
                authority=kubelet_authority,
                management=management,
                health=health,
            )
        )
        gateway = Gateway(
            settings,
            management=management,
            planes=planes,
            datastore=datastore,
            name_servers=planes.names,
            tls=tls,
            address=address,
            files=files,
        )
        planes.avoid(gateway.computes.networks)
        if planes.names is not None:
            await stack.enter_async_context(retiring(planes.names, gateway.computes.names))
        await gateway.run(health)


def beginning(settings: Config, patience: Patience) -> HealthServer:
    """Make what answers for the gateway, also while it waits for the management cluster: it lives, and is not ready."""
    checks = {"management-cluster": lambda: patience.why}
    observed = settings.observability
    socket = gateway_socket(observed, data_dir=Path(settings.data_dir))
    return HealthServer(address=observed.address, port=observed.port, checks=checks, socket=socket)


@contextlib.asynccontextmanager
async def metrics_served(
    settings: Observability, *, address: str, authority: Authority, management: Client, health: HealthServer
) -> AsyncIterator[None]:
    """Serve metrics and state over TLS for as long as the block lasts; the certificate is renewed every day."""

    def pair() -> tuple[bytes, bytes]:
        if settings.cert:
            return Path(settings.cert).read_bytes(), Path(settings.key).read_bytes()
        issued = _issue(authority, address)
        return issued.cert_pem, issued.key_pem

    try:
        cert, key = pair()
    except OSError as error:
        raise InputError(f"observability.cert: {error.filename} cannot be read: {error.strerror}") from error
    tls = authorised.server_context(cert=cert, key=key)
    async with authorised.listener(management, health.answer, tls=tls) as listener, renewed(tls, pair):
        await listener.listen(address, settings.secure_port)
        yield


class Patience:
    """Waits for the management cluster at the start; `why` says what it waits for."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.why = "it is waited for"
        self._backoff = backoff or Backoff(base=0.2, cap=5.0)

    async def first(
        self, attempt: Callable[[], Awaitable[T]], *, remedy: Callable[[], Awaitable[None]] | None = None
    ) -> T:
        """Do what must be done before anything else, again and again while the server is only not there yet.

        `remedy` is for a server whose datastore is full: it takes no writes, not even those with which all begins.
        """
        failures = 0
        while True:
            try:
                return await attempt()
            except errors.ApiError as error:
                if not error.transient:
                    raise
                failures += 1
                self.why = str(error)
                log.warning("the management cluster is not ready yet", error=str(error))
                if remedy is not None and SPACE_EXCEEDED in error.message:
                    await remedy()
                await asyncio.sleep(self._backoff.delay(failures, at_least=error.retry_after))


async def reopen(datastore: Datastore) -> None:
    """Make room in the datastore of tenants, which may be the management cluster's too."""
    try:
        await datastore.look(exempt=())
    except VkgatewayError as error:
        log.warning("the datastore was not looked at", error=str(error))


async def prepare(management: Client) -> None:
    """Make what the gateway itself needs in the management cluster: its kinds and its namespace."""
    folder = resources.files("vkgateway.model") / "crds"
    definitions = [yamltext.load(file.read_text()) for file in folder.iterdir() if file.name.endswith(".yaml")]
    # Side by side, for tenants wait; each to its end, so that no part of it goes on while it is tried again.
    parts = [apply_objects(management, [definition]) for definition in definitions]
    for result in await asyncio.gather(*parts, prerequisites.ensure_namespace(management), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


@contextlib.asynccontextmanager
async def serving(kubelet_authority: Authority, address: str) -> AsyncIterator[ssl.SSLContext]:
    """Give the kubelet endpoint's identity, which is renewed every day for as long as the block lasts."""

    def pair() -> tuple[bytes, bytes]:
        issued = _issue(kubelet_authority, address)
        return issued.cert_pem, issued.key_pem

    cert, key = pair()
    context = server_context(ca=kubelet_authority.cert_pem, cert=cert, key=key)
    async with renewed(context, pair):
        yield context


@contextlib.asynccontextmanager
async def renewed(context: ssl.SSLContext, pair: Callable[[], tuple[bytes, bytes]]) -> AsyncIterator[None]:
    """Give a server another certificate and key every day for as long as the block lasts."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                cert, key = pair()
                load_identity(context, cert=cert, key=key)
            except (OSError, InputError) as error:
                # A full disk, for one; the certificate in use has long to go.
                log.error("the serving certificate was not renewed", error=str(error))

    task = asyncio.create_task(renew(), name="renew-serving-certificate")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _issue(kubelet_authority: Authority, address: str) -> KeyPair:
    return kubelet_authority.issue("vkgateway", ips=(address,), server=True)
