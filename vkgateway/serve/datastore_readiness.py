"""Readiness of the datastore: whether etcd answers and enforces users and roles."""

from __future__ import annotations

from typing import Protocol

import structlog

from vkgateway.api.errors import VkgatewayError
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

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
