"""Reports of persistent reconcile failures: transient failures must be visible to the tenant."""

from __future__ import annotations

import asyncio
import re
from typing import Final

import structlog

from vkgateway.kube import errors
from vkgateway.model.names import compute_namespace
from vkgateway.sync.pods.mirror import clean_message
from vkgateway.sync.pods.pod_context import PodContext
from vkgateway.sync.pods.reporter import PodReporter
from vkgateway.sync.refusals import lacks_rights
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key

log = structlog.get_logger(__name__)

_SERVER_DETAILS: Final = re.compile(r"\w://|\bdial\b|\d{1,3}(?:\.\d{1,3}){3}|\bx509\b")
"""Patterns of server-internal details in error messages: addresses of webhooks and machines."""
_REPORT_AFTER: Final = 60.0
"""Seconds of consecutive failures after which the tenant is notified (design contract: transient failures are visible).
"""
_REPORT_TIMEOUT: Final = 5.0


class FailureReporter:
    """Reporter of one tenant's pods whose reconciliation fails persistently."""

    def __init__(self, scope: TenantScope, reporter: PodReporter) -> None:
        self._scope = scope
        self._reporter = reporter
        self._failing_since: dict[Key, float] = {}

    def forget_pod(self, key: Key) -> None:
        """Record that a pod was reconciled."""
        self._failing_since.pop(key, None)

    async def report_failure(self, context: PodContext, error: Exception) -> None:
        """Record a failed reconciliation; notify the tenant if failures persist."""
        since = self._failing_since.setdefault(context.key, self._scope.clock.time())
        is_persistent = self._scope.clock.time() - since >= _REPORT_AFTER
        if context.tenant is None or context.tenant.is_terminal or not is_persistent:
            return
        try:
            message = clean_message(
                context, _error_message(error), namespace=compute_namespace(self._scope.name, context.key[0])
            )
            # If the tenant's own API server does not answer, the report must not block the worker.
            async with asyncio.timeout(_REPORT_TIMEOUT):
                await self._reporter.report_waiting(context, "ForwardingDelayed", message)
        except (errors.ApiError, TimeoutError) as report_error:
            log.warning(
                "delay not reported", tenant=self._scope.name, pod="/".join(context.key), error=str(report_error)
            )


def _error_message(error: Exception) -> str:
    """Return the error message for the tenant, without server names and requests."""
    if isinstance(error, errors.Unreachable):
        return "a server does not answer; the gateway retries"
    if isinstance(error, errors.ServerError) and _SERVER_DETAILS.search(error.server_message):
        return f"a server failed ({error.status}); the gateway retries"
    if lacks_rights(error):
        return "a server does not allow this request at the moment; the gateway retries"
    return error.server_message if isinstance(error, errors.ApiError) else str(error)
