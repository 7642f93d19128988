"""Reconciler of Kueue's objects in one compute cluster: watches Workloads, and writes what the mode asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from vkgateway.kube import errors
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.reflector import Reflector
from vkgateway.model import times
from vkgateway.model.names import SYSTEM_NAMESPACE
from vkgateway.model.objects import Object
from vkgateway.modes.attempt import Attempt, AttemptState
from vkgateway.modes.kueue.names import API_VERSION, HOSTNAME
from vkgateway.modes.kueue.views import PODS_READY, WorkloadView, decode_workload, read_attempt
from vkgateway.modes.mode import ModeResult
from vkgateway.sync.admission.kueue_queues import PREFIX, WORKLOADS, PoolQueues, own_selector, with_owner
from vkgateway.sync.compute.link import ComputeLink

log = structlog.get_logger(__name__)

_DISCOVERY_SECONDS: Final = 10.0
"""Seconds between two checks whether the cluster serves Kueue's API."""
_CHECK_SECONDS: Final = 60.0
"""Seconds after which queues are checked without a cycle."""
_RETRY_SECONDS: Final = 2.0
_MAX_WRITES: Final = 16
"""Number of writes at the same time."""


class KueueReconciler:
    """Reconciler of one compute cluster. `on_change` is called when a Workload changed, or must be decided again.

    No state here outlives a restart, except what the cluster holds: a Workload has the name of its gang.
    """

    def __init__(self, link: ComputeLink, *, on_change: Callable[[], None], clock: Clock = SYSTEM_CLOCK) -> None:
        self.link = link
        self._client = link.client
        self._on_change = on_change
        self._clock = clock
        self._workloads: Reflector[WorkloadView] | None = None
        """Watch of this gateway's Workloads; None until the gateway's ID is known."""
        self._released: set[str] = set()
        """UIDs of Workloads whose deletion was requested: they count as deleted, whatever the watch still shows."""
        self._attempts: dict[str, tuple[WorkloadView, Attempt]] = {}
        """Attempts by name, with the Workloads from which they were read."""
        self._deletions: list[Attempt] = []
        """Workloads to delete."""
        self._result: ModeResult | None = None
        """Last result; None: no cycle has decided yet."""
        self._is_new = asyncio.Event()
        self._queues = PoolQueues(link, clock=clock)

    @property
    def is_known(self) -> bool:
        """Whether all Workloads are known, so that a missing one does not exist."""
        return self._workloads is not None and self._workloads.is_complete

    def attempts(self) -> dict[str, Attempt]:
        """Return the existing attempts by name."""
        views = self._workloads.store.values() if self._workloads is not None else ()
        return {view.metadata.name: self._attempt(view) for view in views}

    def _attempt(self, view: WorkloadView) -> Attempt:
        known = self._attempts.get(view.metadata.name)
        if known is None or known[0] is not view:
            known = self._attempts[view.metadata.name] = view, read_attempt(view, self.link.name, self._node_of)
        attempt = known[1]
        return replace(attempt, state=AttemptState.DELETING) if attempt.uid in self._released else attempt

    def _node_of(self, host: str) -> str:
        """Return the name of the node with a host name. They nearly always agree."""
        nodes = self.link.nodes.store
        if ("", host) in nodes:
            return host
        return next((node.metadata.name for node in nodes.values() if node.metadata.labels.get(HOSTNAME) == host), host)

    def apply(self, result: ModeResult) -> None:
        """Write what a cycle decided, in the background.

        A later result replaces what is not written yet, except deletions: a cycle does not repeat them.
        """
        self._result = result
        # Until the deletion is refused, no cycle may start a gang in this Workload.
        self._released.update(attempt.uid for attempt in result.releases)
        self._deletions += result.releases
        self._is_new.set()

    async def run(self) -> None:
        """Watch and write until cancelled, while the cluster serves Kueue's API."""
        while not await self._is_served():
            await self._clock.sleep(_DISCOVERY_SECONDS)
        self._workloads = self._new_watch(await self.link.gateway.wait())
        log.info("Kueue schedules pools", compute=self.link.name)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._workloads.run(), name=f"compute/{self.link.name}/watch-workloads")
            group.create_task(self._write_always(), name=f"compute/{self.link.name}/kueue")

    def _new_watch(self, gateway: str) -> Reflector[WorkloadView]:
        return Reflector(
            self._client,
            WORKLOADS,
            decode=decode_workload,
            on_change=self._workload_changed,
            on_complete=self._on_change,
            namespace=SYSTEM_NAMESPACE,
            label_selector=own_selector(gateway),
        )

    async def _is_served(self) -> bool:
        try:
            await self._client.request("GET", f"/{PREFIX}")
        except errors.ApiError:
            return False
        return True

    async def _write_always(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._is_new.wait()
            except TimeoutError:
                pass
            self._is_new.clear()
            if self._result is not None and not await self._write(self._result):
                await self._clock.sleep(_RETRY_SECONDS)
                self._is_new.set()

    async def _write(self, result: ModeResult) -> bool:
        """Write a result; return whether nothing must be retried."""
        deletions, self._deletions = self._deletions, []
        writes = [self._release(attempt) for attempt in deletions]
        writes += [self._create(wanted) for wanted in result.creates]
        writes += [self._mark_ready(attempt) for attempt in result.ready]
        done = all(await _run_all(writes))
        if self._result is result:
            # The next cycle decides on what the watch shows then.
            self._result = result.without_attempts()
        return await self._queues.write(result.pool_objects, unsettled=result.unsettled_tenants) and done

    async def _create(self, wanted: Object) -> bool:
        try:
            document = with_owner(wanted, self.link.gateway.value)
            await self._client.create(WORKLOADS, document, namespace=SYSTEM_NAMESPACE, metadata_only=True)
        except errors.AlreadyExists:
            return True
        except errors.ApiError as error:
            log.warning("Workload not created", compute=self.link.name, error=error.message)
            self._on_change()
            return False
        return True

    async def _release(self, attempt: Attempt) -> bool:
        """Delete a Workload in the state in which it was seen. In another state, the next cycle decides again."""
        try:
            await self._client.delete(
                WORKLOADS,
                attempt.name,
                namespace=SYSTEM_NAMESPACE,
                uid=attempt.uid,
                resource_version=attempt.resource_version,
            )
        except errors.NotFound:
            return True
        except errors.ApiError as error:
            self._released.discard(attempt.uid)
            if isinstance(error, errors.Conflict):
                return True  # The watch shows the new state, and starts a cycle.
            self._on_change()
            log.warning("Workload not deleted", compute=self.link.name, error=error.message)
            return False
        return True

    async def _mark_ready(self, attempt: Attempt) -> bool:
        """Record at a Workload that all its pods run, or Kueue would evict it if it waits for that."""
        condition = {
            "type": PODS_READY,
            "status": "True",
            "reason": "Started",
            "message": "All pods are ready",
            "lastTransitionTime": times.render_time(self._clock.now()),
        }
        document = {
            "apiVersion": API_VERSION,
            "kind": WORKLOADS.kind,
            "metadata": {"name": attempt.name, "namespace": SYSTEM_NAMESPACE, "uid": attempt.uid},
            "status": {"conditions": [condition]},
        }
        try:
            # Server-side apply: the other conditions are Kueue's.
            await self._client.patch(
                WORKLOADS,
                attempt.name,
                document,
                kind="apply",
                namespace=SYSTEM_NAMESPACE,
                subresource="status",
                metadata_only=True,
            )
        except errors.ApiError as error:
            log.warning("Workload not marked as ready", compute=self.link.name, error=error.message)
            return isinstance(error, errors.NotFound | errors.Conflict)
        return True

    def _workload_changed(self, old: WorkloadView | None, new: WorkloadView | None) -> None:
        if new is None and old is not None:
            self._released.discard(old.metadata.uid)
            self._attempts.pop(old.metadata.name, None)
        self._on_change()


async def _run_all(writes: Iterable[Awaitable[bool]]) -> list[bool]:
    limit = asyncio.Semaphore(_MAX_WRITES)

    async def run(write: Awaitable[bool]) -> bool:
        async with limit:
            return await write

    return list(await asyncio.gather(*map(run, writes)))
