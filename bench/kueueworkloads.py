"""Workloads of Kueue without pods, as in its own test, and the controller that ends them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from bench.kueue import WORKLOADS
from bench.persistence import persist
from bench.pods import GPU
from bench.queueload import Work, WorkLog
from bench.settings import IN_FLIGHT
from bench.timeline import now
from vkgateway.api import times
from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import LineSplitter, split_event

_TIMEOUT: Final = 120.0


def workload_manifest(work: Work) -> dict[str, Any]:
    """Return the Workload: one pod set of one pod that requests all units, as in Kueue's test."""
    container = {"name": "c", "image": "pause", "resources": {"requests": {GPU: str(work.units)}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {"name": work.name, "namespace": work.queue},
        "spec": {
            "queueName": work.queue,
            "priority": work.priority,
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
    }


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    resource_version: str
    name: str = ""
    namespace: str = ""


class _Status(msgspec.Struct, gc=False):
    conditions: tuple[dict[str, Any], ...] = ()


class _Workload(msgspec.Struct, gc=False):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)

    def has_condition(self, kind: str) -> bool:
        """Return whether a condition is true."""
        return any(each["type"] == kind and each["status"] == "True" for each in self.status.conditions)


class WorkloadRun:
    """One run of workloads as Workloads. It ends them, and confirms evictions, as the controller of a job does."""

    def __init__(self, client: Client, works: Iterable[Work], *, log: WorkLog, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._works = {(work.queue, work.name): work for work in works}
        self._log = log
        self._group = group
        self._running: dict[Work, asyncio.TimerHandle] = {}
        self._writes = asyncio.Semaphore(IN_FLIGHT)

    async def create(self, work: Work) -> None:
        self._log.mark_created(work)

        async def create() -> None:
            with contextlib.suppress(errors.AlreadyExists):
                await self._client.create(WORKLOADS, workload_manifest(work), namespace=work.queue, timeout=_TIMEOUT)

        await persist(create)

    async def watch(self, opened: asyncio.Event) -> None:
        """Watch all Workloads until cancelled."""
        version = (await self._client.list_all(WORKLOADS)).metadata.resource_version
        while True:
            params: dict[str, str | int | bool] = {
                "watch": True,
                "allowWatchBookmarks": True,
                "resourceVersion": version,
                "timeoutSeconds": 3600,
            }
            splitter = LineSplitter()
            with contextlib.suppress(ConnectionError):
                async with self._client.open_watch(WORKLOADS.path(), params) as stream:
                    opened.set()
                    while chunk := await stream.read():
                        when = now()
                        for line in splitter.feed(chunk):
                            version = self.handle_event(line, when)

    def handle_event(self, line: bytes, when: float) -> str:
        """Handle an event, and return the resource version to resume from."""
        kind, body = split_event(line)
        if kind == "ERROR":
            raise UnavailableError(f"a watch of Workloads cannot be resumed: {body[:200]!r}")
        seen = _decode_workload(body)
        work = self._works.get((seen.metadata.namespace, seen.metadata.name))
        if kind in ("ADDED", "MODIFIED") and work is not None and not seen.has_condition("Finished"):
            self._handle_state(work, seen, when)
        return seen.metadata.resource_version

    def _handle_state(self, work: Work, seen: _Workload, when: float) -> None:
        is_admitted = seen.has_condition("Admitted") and not seen.has_condition("Evicted")
        if is_admitted and work not in self._running:
            self._log.mark_admitted(work, when)
            self._running[work] = asyncio.get_running_loop().call_later(work.run, self._end, work)
        elif not is_admitted and work in self._running:
            self._running.pop(work).cancel()
            self._log.mark_evicted(work)
        if seen.has_condition("Evicted") and seen.has_condition("QuotaReserved"):
            self._group.create_task(self._release(work, seen))

    def _end(self, work: Work) -> None:
        self._group.create_task(self._finish(work))

    async def _finish(self, work: Work) -> None:
        """Report the end of the workload's pod."""
        condition = _condition("Finished", "True", reason="Succeeded", message="the pod has ended")
        patch = [{"op": "add", "path": "/status/conditions/-", "value": condition}]
        async with self._writes:
            with contextlib.suppress(errors.Invalid):  # repeated, and done before
                await persist(lambda: self._patch_status(work, patch, kind="json"))
        self._log.mark_ended(work, now())

    async def _release(self, work: Work, seen: _Workload) -> None:
        """Release the quota of an evicted workload: its pod has ended."""
        changed = {
            kind: _condition(kind, "False", reason="Pending", message="the pod was evicted")
            for kind in ("QuotaReserved", "Admitted")
        }
        conditions = [changed.get(each["type"], each) for each in seen.status.conditions]
        patch = {
            "metadata": {"resourceVersion": seen.metadata.resource_version},
            "status": {"admission": None, "conditions": conditions},
        }
        async with self._writes:
            with contextlib.suppress(errors.Conflict):  # a newer version was already handled or will be
                await persist(lambda: self._patch_status(work, patch, kind="merge"))

    async def _patch_status(self, work: Work, patch: object, *, kind: Literal["json", "merge"]) -> None:
        await self._client.patch(
            WORKLOADS, work.name, patch, kind=kind, namespace=work.queue, subresource="status", timeout=_TIMEOUT
        )


def _condition(kind: str, status: str, *, reason: str, message: str) -> dict[str, str]:
    when = times.render_time(datetime.now(UTC))
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": when}


_decode_workload = msgspec.json.Decoder(_Workload).decode
