"""The daemon process: startup from the settings, shutdown on a signal."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import decode_secret
from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import SECRETS
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.plane_files import Authorities
from vkgateway.planes.supervisor.file_limit import raise_file_limit
from vkgateway.runtime.background import background_task
from vkgateway.serve import certificate_authority as authority
from vkgateway.serve import heap, instance_lock, logs
from vkgateway.serve.addresses import AddressMonitor, GatewayAddress, connect_management, find_gateway_address
from vkgateway.serve.datastore import LazyDatastore, open_datastore
from vkgateway.serve.dependencies import Dependencies
from vkgateway.serve.gateway import Gateway
from vkgateway.serve.health import HealthServer
from vkgateway.serve.leadership import Leadership
from vkgateway.serve.page_server import serve_page
from vkgateway.serve.provisioning import build_control_planes
from vkgateway.serve.serving import kubelet_tls, serve_metrics
from vkgateway.serve.startup import StartupRetry, free_datastore_space, prepare_management_cluster
from vkgateway.settings.config import Config, gateway_socket
from vkgateway.tenants.metrics import record_certificate
from vkgateway.tenants.name_servers import retire_periodically
from vkgateway.version import __version__

log = structlog.get_logger(__name__)

_GC_THRESHOLD = 10_000
"""Allocations before the youngest generation is collected; Python's default is 700 or 2,000."""
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
        election = connect_management(settings, name="the management cluster")
        leadership = Leadership(election, identity=name, settings=settings.leader_election)
        startup = StartupRetry(leading=leadership.leading)
        health = await stack.enter_async_context(build_health_server(settings, startup))
        await stack.enter_async_context(election)
        health.add_check("lease", lambda: leadership.problem)
        health.add_notice("leadership", lambda: leadership.role)
        management = await stack.enter_async_context(
            connect_management(settings, name="the management cluster").guard_writes(leadership.gate)
        )
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

        identity = GatewayIdentity()
        is_prepared = False

        async def prepare() -> None:
            nonlocal is_prepared
            if is_prepared:
                return
            await startup.retry_until_ready(
                lambda: prepare_management_cluster(settings.management_cluster, management, health),
                remedy=lambda: free_datastore_space(datastore),
            )
            identity.set(await startup.retry_until_ready(lambda: ensure_identity(management)))
            is_prepared = True

        if lead.leading.is_set():
            await prepare()
        address = await startup.retry_until_ready(lambda: find_gateway_address(settings))
        kubelet_authority = await startup.retry_until_ready(lambda: authority.ensure_authority(management))
        record_certificate("etcd-authority", datastore_authority.cert_pem)
        record_certificate("kubelet-authority", kubelet_authority.cert_pem)
        shared = Dependencies(
            management=management,
            datastore=datastore,
            authorities=Authorities(etcd=datastore_authority, kubelet=kubelet_authority),
            address=address,
            identity=identity,
            health=health,
            gate=lead.gate,
            files=files,
        )
        await _serve_tenants(settings, shared, lead=lead, prepare=prepare)


async def _serve_tenants(
    settings: Config, shared: Dependencies, *, lead: Leadership, prepare: Callable[[], Awaitable[None]]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clusters = ComputeClusters(shared.management, shared.identity)
        planes = build_control_planes(settings, shared, taken_ranges=clusters.known_networks)
        stack.push_async_callback(planes.close)
        await stack.enter_async_context(watch_address(shared.address, shared.health))
        tls = await stack.enter_async_context(kubelet_tls(shared.authorities.kubelet, shared.address))
        await stack.enter_async_context(serve_metrics(settings.observability, shared))
        gateway = Gateway(
            settings,
            management=shared.management,
            clusters=clusters,
            planes=planes,
            datastore=shared.datastore,
            name_servers=planes.name_servers,
            tls=tls,
            address=shared.address,
            files=shared.files,
            gate=shared.gate,
        )
        lead.last_writes.push_async_callback(gateway.usage.save)
        lead.last_logs.push_async_callback(gateway.arbiter.finish_journal)
        if planes.name_servers is not None:
            retire = retire_periodically(planes.name_servers, clusters.cluster_names, leading=lead.leading)
            await stack.enter_async_context(retire)
        if settings.page.enabled:
            await stack.enter_async_context(serve_page(settings.page, shared, gateway))
        await gateway.run(shared.health, leading=lead.leading, prepare=prepare)


def build_health_server(settings: Config, startup: StartupRetry) -> HealthServer:
    """Return the health server, which reports live but not ready while the management cluster is unavailable."""
    checks = {"management-cluster": lambda: startup.pending_reason, "startup": lambda: startup.problem}
    observability = settings.observability
    socket = gateway_socket(observability, data_dir=Path(settings.data_dir))
    return HealthServer(address=observability.address, port=observability.port, checks=checks, socket=socket)


@contextlib.asynccontextmanager
async def watch_datastore(settings: Config, datastore: LazyDatastore, health: HealthServer) -> AsyncIterator[None]:
    """Check the datastore periodically within the block, and report it on /readyz."""
    readiness = DatastoreReadiness(
        datastore,
        enable_auth=settings.datastore.enable_auth,
        # New pods replace old ones once they are ready, and `helm install --wait` succeeds.
        ready_unchecked=settings.control_planes.driver == "process",
    )
    health.add_check("datastore", readiness.problem)
    async with background_task(readiness.run(), name="datastore-readiness"):
        yield


@contextlib.asynccontextmanager
async def watch_address(address: GatewayAddress, health: HealthServer) -> AsyncIterator[None]:
    """Check the advertised name periodically within the block, and report a changed address on /readyz."""
    monitor = AddressMonitor(address)
    if address.advertised_name:
        health.add_check("address", monitor.problem)
    async with background_task(monitor.run(), name="advertised-address"):
        yield


SECRET_NAME: Final = "gateway-identity"  # noqa: S105 - the name of a Secret, not one
_KEY: Final = "id"


async def ensure_identity(client: Client) -> str:
    """Return the gateway's ID from its Secret, creating the Secret if necessary.

    A backup of the namespace contains it, so that a gateway which moves to another management cluster stays the owner
    of its tenants.

    Raises:
        UnavailableError: the Secret exists but holds no ID.
        ApiError: the management cluster is not available, or refuses.
    """
    try:
        return _decode_identity(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    except errors.NotFound:
        identity = secrets.token_hex(16)
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET_NAME, "namespace": SYSTEM_NAMESPACE},
        "type": "Opaque",
        "data": {_KEY: base64.b64encode(identity.encode()).decode()},
    }
    try:
        await client.create(SECRETS, manifest, namespace=SYSTEM_NAMESPACE)
    except errors.AlreadyExists:
        return _decode_identity(await client.get(SECRETS, SECRET_NAME, namespace=SYSTEM_NAMESPACE))
    log.info("created the gateway's ID", secret=f"{SYSTEM_NAMESPACE}/{SECRET_NAME}", id=identity)
    return identity


def _decode_identity(answer: bytes) -> str:
    try:
        identity = base64.b64decode(decode_secret(answer).data[_KEY]).decode("ascii").strip()
    except (KeyError, ValueError):
        identity = ""
    if not identity:
        raise UnavailableError(
            f"Secret {SYSTEM_NAMESPACE}/{SECRET_NAME} holds no ID under the key {_KEY!r}",
            hint="Restore the Secret. A new ID is not the owner of the tenants in compute clusters.",
        )
    return identity


CHECK_SECONDS = 30.0
RETRY_SECONDS = 2.0


class Datastore(Protocol):
    """The part of `datastore.LazyDatastore` that is used here."""

    async def require_auth(self, *, enable: bool) -> None:
        """Check that etcd answers and enforces users and roles; `enable` sets whether to enable them."""


class DatastoreReadiness:
    """Check of the datastore every 30 seconds, or every two after a failure.

    With `enable_auth`, it enables etcd's users and roles, and the datastore is not ready before. Otherwise, with
    `ready_unchecked`, the datastore counts as ready until the first check, so that a restarted gateway is ready without
    a request to etcd.
    """

    def __init__(
        self, datastore: Datastore, *, enable_auth: bool, ready_unchecked: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._datastore = datastore
        self._enable_auth = enable_auth
        self._clock = clock
        self._problem = "" if ready_unchecked and not enable_auth else "not checked yet"

    def problem(self) -> str:
        """Return why the datastore is not ready; empty if it is."""
        return self._problem

    async def run(self) -> None:
        """Check until cancelled."""
        if not self._problem:
            await self._clock.sleep(RETRY_SECONDS)
        while True:
            await self.check_datastore()
            await self._clock.sleep(RETRY_SECONDS if self._problem else CHECK_SECONDS)

    async def check_datastore(self) -> None:
        """Check once."""
        try:
            await self._datastore.require_auth(enable=self._enable_auth)
        except VkgatewayError as error:
            problem = error.advice
        except Exception as error:  # the next check may succeed
            log.exception("datastore check failed")
            problem = f"{type(error).__name__}: see the gateway's log"
        else:
            problem = ""
        if problem and problem != self._problem:
            log.warning("the datastore is not ready", error=problem)
        self._problem = problem
