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
from vkgateway.gateway import authorization, heap, instance_lock, logs, prerequisites
from vkgateway.gateway import certificate_authority as authority
from vkgateway.gateway.config import Config, Observability, gateway_socket
from vkgateway.gateway.datastore import LazyDatastore, etcd_authority
from vkgateway.gateway.datastore_quota import Datastore
from vkgateway.gateway.gateway import Gateway
from vkgateway.gateway.health import HealthServer
from vkgateway.gateway.management_connection import connect_management, primary_address
from vkgateway.gateway.name_servers import retire_periodically
from vkgateway.gateway.provisioning import build_control_planes
from vkgateway.kube import errors, yamltext
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.client import Client
from vkgateway.kube.tls import load_identity
from vkgateway.kubelet.identity import server_context
from vkgateway.model.errors import InputError, VkgatewayError
from vkgateway.programs.file_limit import raise_file_limit
from vkgateway.version import __version__

log = structlog.get_logger(__name__)
T = TypeVar("T")

_GC_THRESHOLD = 10_000
"""Objects more than before after which the youngest generation is collected; Python's own is 700, or 2,000."""
RENEW_SECONDS = 24 * 3600.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_daemon(settings: Config) -> None:
    """Run the gateway until a signal tells it to stop; raises VkgatewayError where it cannot begin."""
    logs.configure_logging(settings.logging)
    tune_collector()
    heap.mmap_large_blocks()
    files = raise_file_limit()
    log.info("gateway starts", version=__version__, files=files)
    work = asyncio.create_task(_run_gateway(settings, files=files), name="gateway")
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
    gc.set_threshold(_GC_THRESHOLD, 10, 20)


async def _run_gateway(settings: Config, *, files: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        name = stack.enter_context(instance_lock.lock_data_dir(Path(settings.data_dir)))
        patience = StartupRetry()
        health = await stack.enter_async_context(build_health_server(settings, patience))
        management = await stack.enter_async_context(connect_management(settings, name="the management cluster"))
        datastore_authority = etcd_authority(settings.datastore)
        datastore = await stack.enter_async_context(
            LazyDatastore.from_settings(settings.datastore, authority=datastore_authority)
        )
        sole = instance_lock.gateway_lease(management, name=name)
        first = partial(patience.retry_until_ready, remedy=lambda: free_datastore_space(datastore))
        await first(lambda: instance_lock.acquire_lease(sole, management=management))
        await stack.enter_async_context(instance_lock.hold_lease(sole))
        await first(lambda: prepare_management_cluster(management))
        kubelet_authority = await patience.retry_until_ready(lambda: authority.ensure_authority(management))
        address = settings.address or primary_address()
        planes = build_control_planes(
            settings,
            management=management,
            datastore=datastore,
            datastore_authority=datastore_authority,
            kubelet_authority=kubelet_authority,
            address=address,
        )
        tls = await stack.enter_async_context(kubelet_tls(kubelet_authority, address))
        await stack.enter_async_context(
            serve_metrics(
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
            name_servers=planes.name_servers,
            tls=tls,
            address=address,
            files=files,
        )
        planes.exclude_ranges(gateway.compute_controller.known_networks)
        if planes.name_servers is not None:
            await stack.enter_async_context(
                retire_periodically(planes.name_servers, gateway.compute_controller.cluster_names)
            )
        await gateway.run(health)


def build_health_server(settings: Config, patience: StartupRetry) -> HealthServer:
    """Make what answers for the gateway, also while it waits for the management cluster: it lives, and is not ready."""
    checks = {"management-cluster": lambda: patience.pending_reason}
    observed = settings.observability
    socket = gateway_socket(observed, data_dir=Path(settings.data_dir))
    return HealthServer(address=observed.address, port=observed.port, checks=checks, socket=socket)


@contextlib.asynccontextmanager
async def serve_metrics(
    settings: Observability, *, address: str, authority: Authority, management: Client, health: HealthServer
) -> AsyncIterator[None]:
    """Serve metrics and state over TLS for as long as the block lasts; the certificate is renewed every day."""

    def pair() -> tuple[bytes, bytes]:
        if settings.cert:
            return Path(settings.cert).read_bytes(), Path(settings.key).read_bytes()
        issued = _issue_certificate(authority, address)
        return issued.cert_pem, issued.key_pem

    try:
        cert, key = pair()
    except OSError as error:
        raise InputError(f"observability.cert: {error.filename} cannot be read: {error.strerror}") from error
    tls = authorization.server_context(cert=cert, key=key)
    async with (
        authorization.metrics_listener(management, health.answer_request, tls=tls) as listener,
        renew_certificate(tls, pair),
    ):
        await listener.listen_tcp(address, settings.secure_port)
        yield


class StartupRetry:
    """Waits for the management cluster at the start; `pending_reason` says what it waits for."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.pending_reason = "it is waited for"
        self._backoff = backoff or Backoff(base=0.2, cap=5.0)

    async def retry_until_ready(
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
                if not error.is_transient:
                    raise
                failures += 1
                self.pending_reason = str(error)
                log.warning("the management cluster is not ready yet", error=str(error))
                if remedy is not None and SPACE_EXCEEDED in error.message:
                    await remedy()
                await asyncio.sleep(self._backoff.delay_after(failures, at_least=error.retry_after))


async def free_datastore_space(datastore: Datastore) -> None:
    """Make room in the datastore of tenants, which may be the management cluster's too."""
    try:
        await datastore.check_usage(exempt=())
    except VkgatewayError as error:
        log.warning("the datastore was not looked at", error=str(error))


async def prepare_management_cluster(management: Client) -> None:
    """Make what the gateway itself needs in the management cluster: its kinds and its namespace."""
    folder = resources.files("vkgateway.model") / "crds"
    definitions = [yamltext.load(file.read_text()) for file in folder.iterdir() if file.name.endswith(".yaml")]
    # Side by side, for tenants wait; each to its end, so that no part of it goes on while it is tried again.
    parts = [apply_objects(management, [definition]) for definition in definitions]
    for result in await asyncio.gather(*parts, prerequisites.ensure_namespace(management), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


@contextlib.asynccontextmanager
async def kubelet_tls(kubelet_authority: Authority, address: str) -> AsyncIterator[ssl.SSLContext]:
    """Give the kubelet endpoint's identity, which is renewed every day for as long as the block lasts."""

    def pair() -> tuple[bytes, bytes]:
        issued = _issue_certificate(kubelet_authority, address)
        return issued.cert_pem, issued.key_pem

    cert, key = pair()
    context = server_context(ca=kubelet_authority.cert_pem, cert=cert, key=key)
    async with renew_certificate(context, pair):
        yield context


@contextlib.asynccontextmanager
async def renew_certificate(context: ssl.SSLContext, pair: Callable[[], tuple[bytes, bytes]]) -> AsyncIterator[None]:
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


def _issue_certificate(kubelet_authority: Authority, address: str) -> KeyPair:
    return kubelet_authority.issue("vkgateway", ips=(address,), server=True)
