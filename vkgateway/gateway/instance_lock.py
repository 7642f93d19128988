"""Single-instance lock: one gateway serves a management cluster; a second one is refused."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import structlog

from vkgateway.gateway import prerequisites
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.leases import LeaderElector, LeaseTaken
from vkgateway.model.errors import ConflictError
from vkgateway.model.names import SYSTEM_NAMESPACE

log = structlog.get_logger(__name__)

LEASE_NAME = "gateway"
LOCK_FILE = "gateway.lock"
"""File in the data directory: locked by its gateway, and contains the gateway's identity."""
_NAME_BYTES = 4


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[str]:
    """Lock a data directory and yield the gateway's identity, which is stable across restarts.

    The kernel releases the lock when the process ends. If the file cannot be written, for example because the disk is
    full, the gateway runs without the lock.

    Raises:
        ConflictError: another gateway uses the data directory.
    """
    host = socket.gethostname()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("data directory not locked", folder=str(data_dir), error=error.strerror)
        yield host
        return
    try:
        yield f"{host}/{_read_identity(descriptor, data_dir)}"
    finally:
        os.close(descriptor)


def _read_identity(descriptor: int, data_dir: Path) -> str:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConflictError(
            f"another gateway uses the data directory {data_dir}",
            hint="Only one gateway can serve a management cluster. Stop the other one first.",
        ) from None
    except OSError as error:  # some file systems do not support locks
        log.warning("data directory not locked", folder=str(data_dir), error=error.strerror)
    known = os.pread(descriptor, 2 * _NAME_BYTES, 0).decode(errors="replace")
    if len(known) == 2 * _NAME_BYTES and known.isalnum():
        return known
    made = secrets.token_hex(_NAME_BYTES)
    try:
        os.pwrite(descriptor, made.encode(), 0)
    except OSError as error:
        log.warning(
            "identity not stored; the gateway has another identity after a restart",
            folder=str(data_dir),
            error=error.strerror,
        )
    return made


def gateway_lease(management: Client, *, name: str) -> LeaderElector:
    """Return the elector of the Lease that names the gateway of the management cluster."""
    return LeaderElector(management, LEASE_NAME, namespace=SYSTEM_NAMESPACE, identity=name)


async def acquire_lease(elector: LeaderElector, *, management: Client) -> None:
    """Acquire the Lease before the gateway does anything else. Without permission, only log an error.

    Raises:
        ConflictError: another gateway serves the management cluster.
        ApiError: the management cluster is not available now.
    """
    try:
        await _try_acquire(elector, management)
    except LeaseTaken as error:
        raise _conflict_error(error) from error
    except errors.Forbidden as error:
        log.error("no permission for the Lease that detects other gateways; see deploy/rbac", error=error.message)


async def _try_acquire(elector: LeaderElector, management: Client) -> None:
    try:
        await elector.acquire_lease()
    except errors.NotFound:  # the namespace, at the very first start
        await prerequisites.ensure_namespace(management)
        await elector.acquire_lease()


@contextlib.asynccontextmanager
async def hold_lease(elector: LeaderElector) -> AsyncIterator[None]:
    """Renew the Lease within the block, and cancel the block if another gateway takes the Lease over.

    An unreachable management cluster does not cancel the block: the gateway keeps serving tenants.

    Raises:
        ConflictError: another gateway has taken the Lease over.
    """
    owner = asyncio.current_task()
    assert owner is not None
    renewal = asyncio.create_task(elector.renew_lease(), name="sole-gateway")
    renewal.add_done_callback(lambda task: None if task.cancelled() else owner.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if renewal.done() and not renewal.cancelled() and (lost := renewal.exception()) is not None:
            owner.uncancel()
            raise (_conflict_error(lost) if isinstance(lost, LeaseTaken) else lost) from lost
        raise
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)


def _conflict_error(taken: LeaseTaken) -> ConflictError:
    return ConflictError(
        f"another gateway serves this management cluster: {taken}",
        hint="Only one gateway can serve a management cluster. Stop the other one first. The Lease of a crashed "
        "gateway expires after half a minute.",
    )
