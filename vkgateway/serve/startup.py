"""Startup of the gateway: retries, and what must exist in the management cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.clusters import prerequisites
from vkgateway.kube import errors
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.client import Client
from vkgateway.planes.etcd.errors import SPACE_EXCEEDED
from vkgateway.serve import definitions
from vkgateway.serve.datastore_quota import Datastore
from vkgateway.serve.health import HealthServer
from vkgateway.settings.config import ManagementCluster

log = structlog.get_logger(__name__)
T = TypeVar("T")

_RBAC_HINT = "Grant the permission: see deploy/rbac, or upgrade the chart. The gateway retries."
_LEADER_RETRY_SECONDS = 1.0
"""Interval in which a standby checks whether the leader has created what it misses."""


class StartupRetry:
    """Retries of startup steps until the management cluster and whatever else they need are available.

    `pending_reason` says why the management cluster is not available, `problem` what else is missing.
    """

    def __init__(self, backoff: Backoff | None = None, *, leading: asyncio.Event | None = None) -> None:
        """Create it; `leading` is set when this gateway leads. Until then, it waits for what it must not create."""
        self.pending_reason = ""
        self.problem = ""
        self._leading = leading or asyncio.Event()
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
        if not self._leading.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEADER_RETRY_SECONDS):
                    await self._leading.wait()

    def _set_problem(self, problem: str) -> None:
        """Report what is missing although the management cluster answers, and log it once."""
        if problem != self.problem:
            log.warning("the gateway cannot start yet", error=problem)
        self.pending_reason, self.problem = "", problem


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
    work = (
        definitions.install_definitions(management)
        if settings.install_definitions
        else _check_definitions(management, health)
    )
    # In parallel, because tenants wait; all to the end, so that no part overlaps with a retry.
    for result in await asyncio.gather(work, prerequisites.ensure_namespace(management), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _check_definitions(management: Client, health: HealthServer) -> None:
    notice = await definitions.check_definitions(management)
    health.add_notice("definitions", lambda: notice)
