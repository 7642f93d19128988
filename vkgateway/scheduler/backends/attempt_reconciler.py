"""Reconciler of one scheduler's objects in one compute cluster: watches attempts, and writes what the mode asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, Generic

import structlog

from vkgateway.api.names import FIELD_MANAGER
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import HOSTNAME_LABEL
from vkgateway.kube import errors
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.reflector import Reflector
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.kinds import ModeKinds, View, with_owner
from vkgateway.scheduler.backends.mode import ModeResult, Return
from vkgateway.scheduler.backends.names import GANG_ANNOTATION
from vkgateway.scheduler.backends.pool_objects import PoolObjects

log = structlog.get_logger(__name__)

_DISCOVERY_SECONDS: Final = 10.0
"""Seconds between two checks whether the cluster serves the scheduler's API."""
_CHECK_SECONDS: Final = 60.0
"""Seconds after which queues are checked without a cycle."""
_RETRY_SECONDS: Final = 2.0
_RETURNS_MANAGER: Final = f"{FIELD_MANAGER}-returned-slots"
_MAX_WRITES: Final = 16
"""Number of writes at the same time."""


MissingNamespace = Callable[[str], None]
"""Called with a gang whose compute namespace does not exist."""


class AttemptReconciler(Generic[View]):
    """Reconciler of one scheduler in one compute cluster.

    `on_change` is called when an attempt changed, or must be decided again. No state here outlives a restart, except
    what the cluster holds: an attempt's object has the name of its gang.
    """

    def __init__(
        self,
        kinds: ModeKinds[View],
        link: ComputeLink,
        *,
        on_change: Callable[[], None],
        on_missing_namespace: MissingNamespace = lambda _gang: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.link = link
        self._kinds = kinds
        self._client = link.client
        self._on_change = on_change
        self._on_missing_namespace = on_missing_namespace
        self._clock = clock
        self._watch: Reflector[View] | None = None
        """Watch of this gateway's objects; None until the gateway's ID is known."""
        self._released: set[str] = set()
        """UIDs of objects whose deletion was requested: they count as deleted, whatever the watch still shows."""
        self._attempts: dict[str, tuple[View, Attempt]] = {}
        """Attempts by name, with the objects from which they were read."""
        self._deletions: list[Attempt] = []
        """Attempts whose objects must be deleted."""
        self._result: ModeResult | None = None
        """Last result; None: no cycle has decided yet."""
        self._is_new = asyncio.Event()
        self._pool_objects = PoolObjects(kinds, link, clock=clock)

    @property
    def is_known(self) -> bool:
        """Whether all attempts are known, so that a missing one does not exist."""
        return self._watch is not None and self._watch.is_complete

    def attempts(self) -> dict[str, Attempt]:
        """Return the existing attempts by name."""
        views = self._watch.store.values() if self._watch is not None else ()
        return {view.metadata.name: self._attempt(view) for view in views}

    def _attempt(self, view: View) -> Attempt:
        known = self._attempts.get(view.metadata.name)
        if known is None or known[0] is not view:
            known = self._attempts[view.metadata.name] = view, self._kinds.read(view, self.link.name, self._node_of)
        attempt = known[1]
        return replace(attempt, state=AttemptState.DELETING) if attempt.uid in self._released else attempt

    def _node_of(self, host: str) -> str:
        """Return the name of the node with a host name. They nearly always agree."""
        nodes = self.link.nodes.store
        if ("", host) in nodes:
            return host
        return next(
            (node.metadata.name for node in nodes.values() if node.metadata.labels.get(HOSTNAME_LABEL) == host), host
        )

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
        """Watch and write until cancelled, while the cluster serves the scheduler's API."""
        while not await self._is_served():
            await self._clock.sleep(_DISCOVERY_SECONDS)
        self._watch = self._new_watch(await self.link.gateway.wait())
        log.info("scheduler of pools found", compute=self.link.name, mode=self._kinds.mode)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run(), name=f"compute/{self.link.name}/watch-attempts")
            group.create_task(self._write_always(), name=f"compute/{self.link.name}/{self._kinds.mode}")

    def _new_watch(self, gateway: str) -> Reflector[View]:
        return Reflector(
            self._client,
            self._kinds.attempts,
            decode=self._kinds.decode,
            on_change=self._attempt_changed,
            on_complete=self._on_change,
            namespace=self._kinds.namespace or None,
            label_selector=self._kinds.own_selector(gateway),
        )

    async def _is_served(self) -> bool:
        try:
            await self._client.request("GET", f"/{self._kinds.attempts.prefix}")
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
        # First: an attempt may refer to them.
        are_pool_objects_written = await self._pool_objects.write(
            result.pool_objects, unsettled=result.unsettled_tenants
        )
        deletions, self._deletions = self._deletions, []
        writes = [self._release(attempt) for attempt in deletions]
        writes += [self._create(wanted) for wanted in result.creates]
        writes += [self._mark_ready(attempt) for attempt in result.ready]
        writes += [self._return_slots(returned) for returned in result.returns]
        done = all(await _run_all(writes))
        if self._result is result:
            # The next cycle decides on what the watch shows then.
            self._result = result.without_attempts()
        return are_pool_objects_written and done

    async def _create(self, wanted: Object) -> bool:
        namespace, document = wanted["metadata"]["namespace"], with_owner(wanted, self.link.gateway.value)
        try:
            await self._client.create(self._kinds.attempts, document, namespace=namespace, metadata_only=True)
        except errors.AlreadyExists:
            return True
        except errors.NotFound:
            # The namespace of a tenant's pods does not exist before the first one.
            self._on_missing_namespace(wanted["metadata"]["annotations"][GANG_ANNOTATION])
            self._on_change()
            return False
        except errors.ApiError as error:
            log.warning("attempt not created", compute=self.link.name, mode=self._kinds.mode, error=error.message)
            self._on_change()
            return False
        return True

    async def _release(self, attempt: Attempt) -> bool:
        """Delete an attempt in the state in which it was seen. In another state, the next cycle decides again."""
        try:
            await self._client.delete(
                self._kinds.attempts,
                attempt.name,
                namespace=attempt.namespace,
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
            log.warning("attempt not deleted", compute=self.link.name, mode=self._kinds.mode, error=error.message)
            return False
        return True

    async def _mark_ready(self, attempt: Attempt) -> bool:
        """Record at an attempt that all its pods run, if the scheduler waits for that."""
        if self._kinds.ready_status is None:
            return True
        return await self._apply_status(attempt, self._kinds.ready_status(self._clock.now()), FIELD_MANAGER)

    async def _return_slots(self, returned: Return) -> bool:
        """Return slots of a running attempt to the scheduler, if it takes them back."""
        if self._kinds.returned_status is None:
            return True
        status = self._kinds.returned_status(returned.slots)
        return await self._apply_status(returned.attempt, status, _RETURNS_MANAGER)

    async def _apply_status(self, attempt: Attempt, status: Object, field_manager: str) -> bool:
        """Write a part of an attempt's status. A field manager of its own keeps it when another part is written."""
        kind = self._kinds.attempts
        document = {
            "apiVersion": kind.prefix.removeprefix("apis/"),
            "kind": kind.kind,
            "metadata": {"name": attempt.name, "namespace": attempt.namespace, "uid": attempt.uid},
            "status": status,
        }
        try:
            # Server-side apply: the rest of the status is the scheduler's.
            await self._client.patch(
                self._kinds.attempts,
                attempt.name,
                document,
                kind="apply",
                namespace=attempt.namespace,
                subresource="status",
                field_manager=field_manager,
                metadata_only=True,
            )
        except (errors.NotFound, errors.Conflict):
            return True  # The gang has ended.
        except errors.ApiError as error:
            log.warning(
                "status of an attempt not written",
                compute=self.link.name,
                mode=self._kinds.mode,
                fields=", ".join(status),
                error=error.message,
            )
            return False
        return True

    def _attempt_changed(self, old: View | None, new: View | None) -> None:
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
