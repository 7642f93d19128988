"""One gateway serves a management cluster: a second one is refused, and one that was replaced ends."""

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
"""In the data directory: locked by the gateway that uses it, and holds by what it is known there."""
_NAME_BYTES = 4


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[str]:
    """Give the name of the gateway of a data directory, the same after each restart, and keep others out of it.

    The lock goes with the process, however that ends. A disk that takes no more files is no reason not to serve.

    Raises:
        ConflictError: another gateway uses the data directory.
    """
    host = socket.gethostname()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("the data directory is not locked", folder=str(data_dir), error=error.strerror)
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
            f"another gateway serves with the data directory {data_dir}",
            hint="One gateway serves a management cluster: stop the other one first.",
        ) from None
    except OSError as error:  # some file systems know no locks
        log.warning("the data directory is not locked", folder=str(data_dir), error=error.strerror)
    known = os.pread(descriptor, 2 * _NAME_BYTES, 0).decode(errors="replace")
    if len(known) == 2 * _NAME_BYTES and known.isalnum():
        return known
    made = secrets.token_hex(_NAME_BYTES)
    try:
        os.pwrite(descriptor, made.encode(), 0)
    except OSError as error:
        log.warning("the gateway has another name after a restart", folder=str(data_dir), error=error.strerror)
    return made


def gateway_lease(management: Client, *, name: str) -> LeaderElector:
    """The Lease in the management cluster that says which gateway serves it."""
    return LeaderElector(management, LEASE_NAME, namespace=SYSTEM_NAMESPACE, identity=name)


async def acquire_lease(sole: LeaderElector, *, management: Client) -> None:
    """Take the Lease before anything else is done. Without rights on it the gateway serves, and says so.

    Raises:
        ConflictError: another gateway serves the management cluster.
        ApiError: it cannot be asked now.
    """
    try:
        await _try_acquire(sole, management)
    except LeaseTaken as error:
        raise _conflict_error(error) from error
    except errors.Forbidden as error:
        log.error("it is not known whether another gateway serves, see deploy/rbac", error=error.message)


async def _try_acquire(sole: LeaderElector, management: Client) -> None:
    try:
        await sole.acquire_lease()
    except errors.NotFound:  # the namespace, at the very first start
        await prerequisites.ensure_namespace(management)
        await sole.acquire_lease()


@contextlib.asynccontextmanager
async def hold_lease(sole: LeaderElector) -> AsyncIterator[None]:
    """Renew the Lease for as long as the block lasts, and end the block where another gateway has taken it over.

    A management cluster that does not answer ends nothing: tenants' work goes on without it.

    Raises:
        ConflictError: another gateway serves the management cluster by now.
    """
    owner = asyncio.current_task()
    assert owner is not None
    keeping = asyncio.create_task(sole.renew_lease(), name="sole-gateway")
    keeping.add_done_callback(lambda task: None if task.cancelled() else owner.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if keeping.done() and not keeping.cancelled() and (lost := keeping.exception()) is not None:
            owner.uncancel()
            raise (_conflict_error(lost) if isinstance(lost, LeaseTaken) else lost) from lost
        raise
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def _conflict_error(taken: LeaseTaken) -> ConflictError:
    return ConflictError(
        f"another gateway serves this management cluster: {taken}",
        hint="One gateway serves a management cluster: stop the other one first. Of one that is gone for good the "
        "Lease is taken over half a minute later.",
    )
