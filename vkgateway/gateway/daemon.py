"""The daemon process: startup from the settings, shutdown on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog

from vkgateway.controlplane.etcd.errors import SPACE_EXCEEDED
from vkgateway.controlplane.pki import Authority, KeyPair
from vkgateway.gateway import authorization, definitions, heap, instance_lock, logs, prerequisites
from vkgateway.gateway import certificate_authority as authority
from vkgateway.gateway.addresses import AddressMonitor, GatewayAddress, find_gateway_address, is_unspecified
from vkgateway.gateway.config import Config, ManagementCluster, Observability, gateway_socket
from vkgateway.gateway.datastore import LazyDatastore, open_datastore
from vkgateway.gateway.datastore_quota import Datastore
from vkgateway.gateway.datastore_readiness import DatastoreReadiness
from vkgateway.gateway.gateway import Gateway
from vkgateway.gateway.health import HealthServer
from vkgateway.gateway.leadership import Leadership
from vkgateway.gateway.management_connection import connect_management
from vkgateway.gateway.name_servers import retire_periodically
from vkgateway.gateway.provisioning import build_control_planes
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.client import Client
from vkgateway.kube.tls import load_identity
from vkgateway.kube.write_gate import WriteGate
from vkgateway.kubelet.identity import server_context
from vkgateway.model.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.programs.file_limit import raise_file_limit
from vkgateway.version import __version__

log = structlog.get_logger(__name__)
T = TypeVar("T")

_GC_THRESHOLD = 10_000
"""Allocations before the youngest generation is collected; Python's default is 700 or 2,000."""
_RBAC_HINT = "Grant the permission: see deploy/rbac, or upgrade the chart. The gateway retries."
_LEADER_RETRY_SECONDS = 1.0
"""Interval in which a standby checks whether the leader has created what it misses."""
RENEW_SECONDS = 24 * 3600.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_daemon(settings: Config) -> None:
    """Run the gateway until SIGTERM or SIGINT. Raises VkgatewayError if it cannot start."""
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
    """Reduce the frequency of garbage collection and exclude imported modules.

    Long-lived objects form no reference cycles, and a full collection takes longer than all work on a pod.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 20)


async def _run_gateway(settings: Config, *, files: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        name = stack.enter_context(instance_lock.lock_data_dir(Path(settings.data_dir)))
        startup = StartupRetry()
        health = await stack.enter_async_context(build_health_server(settings, startup))
        election = await stack.enter_async_context(connect_management(settings, name="the management cluster"))
        leadership = Leadership(election, identity=name, settings=settings.leader_election)
        health.add_check("lease", lambda: leadership.problem)
        health.add_notice("leadership", lambda: leadership.role)
        management = await stack.enter_async_context(
            connect_management(settings, name="the management cluster").guard_writes(leadership.gate)
        )
        startup.leading = leadership.leading
        work = _serve(settings, startup=startup, management=management, health=health, files=files, lead=leadership)
        await leadership.run(
            work,
            free_space=lambda: _free_space(settings, startup=startup, management=management, gate=leadership.gate),
        )


async def _free_space(settings: Config, *, startup: StartupRetry, management: Client, gate: WriteGate) -> None:
    opened = open_datastore(settings.datastore, management=management, retry=startup.retry_until_ready, gate=gate)
    async with opened as (_, datastore):
        await free_datastore_space(datastore)


async def _serve(
    settings: Config,
    *,
    startup: StartupRetry,
    management: Client,
    health: HealthServer,
    files: int,
    lead: Leadership,
) -> None:
    """Stand by, then lead, until cancelled. What a standby misses, it waits for: a leader creates it."""
    await lead.role_known.wait()
    async with contextlib.AsyncExitStack() as stack:
        datastore_authority, datastore = await stack.enter_async_context(
            open_datastore(settings.datastore, management=management, retry=startup.retry_until_ready, gate=lead.gate)
        )
        await stack.enter_async_context(watch_datastore(settings, datastore, health))

        async def prepare() -> None:
            await startup.retry_until_ready(
                lambda: prepare_management_cluster(settings.management_cluster, management, health),
                remedy=lambda: free_datastore_space(datastore),
            )

        if lead.leading.is_set():
            await prepare()
        address = await startup.retry_until_ready(lambda: find_gateway_address(settings))
        kubelet_authority = await startup.retry_until_ready(lambda: authority.ensure_authority(management))
        await _serve_tenants(
            settings,
            management=management,
            datastore=datastore,
            datastore_authority=datastore_authority,
            kubelet_authority=kubelet_authority,
            address=address,
            health=health,
            files=files,
            lead=lead,
            prepare=prepare,
        )


async def _serve_tenants(
    settings: Config,
    *,
    management: Client,
    datastore: LazyDatastore,
    datastore_authority: Authority,
    kubelet_authority: Authority,
    address: GatewayAddress,
    health: HealthServer,
    files: int,
    lead: Leadership,
    prepare: Callable[[], Awaitable[None]],
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        planes = build_control_planes(
            settings,
            management=management,
            datastore=datastore,
            datastore_authority=datastore_authority,
            kubelet_authority=kubelet_authority,
            address=address,
            gate=lead.gate,
        )
        stack.push_async_callback(planes.close)
        await stack.enter_async_context(watch_address(address, health))
        tls = await stack.enter_async_context(kubelet_tls(kubelet_authority, address))
        await stack.enter_async_context(
            serve_metrics(
                settings.observability,
                address=address,
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
            gate=lead.gate,
        )
        lead.finish_logs = gateway.arbiter.finish_journal
        planes.exclude_ranges(gateway.compute_controller.clusters.known_networks)
        if planes.name_servers is not None:
            cluster_names = gateway.compute_controller.clusters.cluster_names
            retire = retire_periodically(planes.name_servers, cluster_names, leading=lead.leading)
            await stack.enter_async_context(retire)
        await gateway.run(health, leading=lead.leading, prepare=prepare)


def build_health_server(settings: Config, startup: StartupRetry) -> HealthServer:
    """Return the health server, which reports live but not ready while the management cluster is unavailable."""
    checks = {"management-cluster": lambda: startup.pending_reason, "startup": lambda: startup.problem}
    observability = settings.observability
    socket = gateway_socket(observability, data_dir=Path(settings.data_dir))
    return HealthServer(address=observability.address, port=observability.port, checks=checks, socket=socket)


@contextlib.asynccontextmanager
async def serve_metrics(
    settings: Observability,
    *,
    address: GatewayAddress,
    authority: Authority,
    management: Client,
    health: HealthServer,
) -> AsyncIterator[None]:
    """Serve metrics and state over TLS within the block; the certificate is renewed daily."""
    listen = settings.secure_address or address.listen

    def pair() -> tuple[bytes, bytes]:
        if settings.cert:
            return Path(settings.cert).read_bytes(), Path(settings.key).read_bytes()
        extra = () if is_unspecified(listen) else (listen,)
        issued = _issue_certificate(authority, address, extra=extra)
        return issued.cert_pem, issued.key_pem

    try:
        cert, key = pair()
    except OSError as error:
        raise InputError(f"observability.cert: cannot read {error.filename}: {error.strerror}") from error
    tls = authorization.server_context(cert=cert, key=key)
    async with (
        authorization.metrics_listener(management, health.answer_request, tls=tls) as listener,
        renew_certificate(tls, pair),
    ):
        await listener.listen_tcp(listen, settings.secure_port)
        yield


class StartupRetry:
    """Retries of startup steps until the management cluster and whatever else they need are available.

    `pending_reason` says why the management cluster is not available, `problem` what else is missing.
    """

    def __init__(self, backoff: Backoff | None = None) -> None:
        self.pending_reason = ""
        self.problem = ""
        self.leading = asyncio.Event()
        """Set when this gateway leads. Until then, it waits for what it must not create."""
        self._backoff = backoff or Backoff(base=0.2, cap=5.0)

    async def retry_until_ready(
        self, attempt: Callable[[], Awaitable[T]], *, remedy: Callable[[], Awaitable[None]] | None = None
    ) -> T:
        """Return the result of `attempt`, which is retried after transient errors, missing permissions and
        UnavailableError.

        `remedy` runs if the server's datastore is full, because then even the first writes of the startup fail.
        """
        failures = 0
        while True:
            try:
                result = await attempt()
            except errors.Forbidden as error:
                self._set_problem(f"{error}. {_RBAC_HINT}")
                at_least = None
            except errors.NotLeader:
                self._set_problem("waits for the leading gateway to create what is missing")
                await self._wait_for_leadership()
                continue
            except errors.ApiError as error:
                if not error.is_transient:
                    raise
                self.pending_reason, at_least = str(error), error.retry_after
                log.warning("the management cluster is not ready yet", error=str(error))
                if remedy is not None and SPACE_EXCEEDED in error.message:
                    await remedy()
            except UnavailableError as error:
                self._set_problem(error.advice)
                at_least = None
            else:
                self.pending_reason = self.problem = ""
                return result
            failures += 1
            await asyncio.sleep(self._backoff.delay_after(failures, at_least=at_least))

    async def _wait_for_leadership(self) -> None:
        """Wait until this gateway leads, and at least a moment: then it can prove it again."""
        await asyncio.sleep(_LEADER_RETRY_SECONDS / 10)
        if not self.leading.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEADER_RETRY_SECONDS):
                    await self.leading.wait()

    def _set_problem(self, problem: str) -> None:
        """Report what is missing although the management cluster answers, and log it once."""
        if problem != self.problem:
            log.warning("the gateway cannot start yet", error=problem)
        self.pending_reason, self.problem = "", problem


@contextlib.asynccontextmanager
async def watch_datastore(settings: Config, datastore: LazyDatastore, health: HealthServer) -> AsyncIterator[None]:
    """Check the datastore periodically within the block, and report it on /readyz."""
    readiness = DatastoreReadiness(datastore, enable_auth=settings.datastore.enable_auth)
    health.add_check("datastore", readiness.problem)
    async with _background_task(readiness.run(), name="datastore-readiness"):
        yield


@contextlib.asynccontextmanager
async def watch_address(address: GatewayAddress, health: HealthServer) -> AsyncIterator[None]:
    """Check the advertised name periodically within the block, and report a changed address on /readyz."""
    monitor = AddressMonitor(address)
    if address.advertised_name:
        health.add_check("address", monitor.problem)
    async with _background_task(monitor.run(), name="advertised-address"):
        yield


@contextlib.asynccontextmanager
async def _background_task(work: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[None]:
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def free_datastore_space(datastore: Datastore) -> None:
    """Free space in the tenants' datastore, which the management cluster may share."""
    try:
        await datastore.check_usage(exempt=())
    except VkgatewayError as error:
        log.warning("datastore check failed", error=str(error))


async def prepare_management_cluster(settings: ManagementCluster, management: Client, health: HealthServer) -> None:
    """Create the gateway's namespace, and install or check the CustomResourceDefinitions.

    Raises:
        DefinitionsError: the gateway does not install the definitions, and they are missing or too old.
    """
    if settings.install_definitions:
        work = definitions.install_definitions(management)
    else:
        notice = definitions.DefinitionNotice()
        health.add_notice("definitions", lambda: notice.text)
        work = definitions.check_definitions(management, notice)
    # In parallel, because tenants wait; all to the end, so that no part overlaps with a retry.
    for result in await asyncio.gather(work, prerequisites.ensure_namespace(management), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


@contextlib.asynccontextmanager
async def kubelet_tls(kubelet_authority: Authority, address: GatewayAddress) -> AsyncIterator[ssl.SSLContext]:
    """Yield the TLS context of the kubelet endpoint; its certificate is renewed daily within the block."""

    def pair() -> tuple[bytes, bytes]:
        issued = _issue_certificate(kubelet_authority, address)
        return issued.cert_pem, issued.key_pem

    cert, key = pair()
    context = server_context(ca=kubelet_authority.cert_pem, cert=cert, key=key)
    async with renew_certificate(context, pair):
        yield context


@contextlib.asynccontextmanager
async def renew_certificate(context: ssl.SSLContext, pair: Callable[[], tuple[bytes, bytes]]) -> AsyncIterator[None]:
    """Load a server's certificate and key again every day within the block."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                cert, key = pair()
                load_identity(context, cert=cert, key=key)
            except (OSError, InputError) as error:
                # For example a full disk; the current certificate is valid for much longer than a day.
                log.error("serving certificate not renewed", error=str(error))

    task = asyncio.create_task(renew(), name="renew-serving-certificate")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _issue_certificate(kubelet_authority: Authority, address: GatewayAddress, *, extra: Sequence[str] = ()) -> KeyPair:
    ips = tuple(dict.fromkeys((*address.certificate_ips, *extra)))
    return kubelet_authority.issue("vkgateway", ips=ips, dns=address.certificate_names, server=True)
