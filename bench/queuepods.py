"""Runs of workloads as pods: each pod starts, ends after its run time, or is evicted."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod

from bench.jobruns import complete_pod
from bench.persistence import persist
from bench.queueload import Work, WorkLog
from bench.settings import IN_FLIGHT
from bench.timeline import Key, Mark, now
from vkgateway.kube import errors
from vkgateway.kube.client import Client


class PodsRun(ABC):
    """One run of workloads as pods. Watches call its methods with what they show first of each pod."""

    def __init__(self, *, log: WorkLog, group: asyncio.TaskGroup) -> None:
        self.log = log
        self.group = group
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failed: set[Key] = set()
        self._ended: set[Key] = set()
        self._writes = asyncio.Semaphore(IN_FLIGHT)

    @abstractmethod
    def work_of(self, key: Key) -> Work:
        """Return the workload of a pod."""

    @abstractmethod
    def pod_evicted(self, key: Key) -> None:
        """Called when a pod was evicted."""

    @abstractmethod
    async def finish_pod(self, key: Key) -> None:
        """End a pod after its run."""

    def pod_admitted(self, key: Key) -> None:
        """Record that the scheduler has admitted a pod."""
        self.log.mark_admitted(self.work_of(key), now())

    def start_pod(self, key: Key) -> None:
        """Start the run of a pod, unless it has ended."""
        if key not in self._ended:
            self._timers[key] = asyncio.get_running_loop().call_later(self.work_of(key).run, self._finish, key)

    def handle_end(self, mark: Mark, key: Key) -> None:
        """Handle a mark of a pod that may be its end: `ended`, `failed` or `gone`."""
        if mark == "failed":
            self._failed.add(key)
        elif mark in ("ended", "gone"):
            # One event shows that a pod has ended, and then that it failed.
            asyncio.get_running_loop().call_soon(self.end_pod, key)

    def end_pod(self, key: Key) -> None:
        """Record the end of a pod, once. A failed one was evicted."""
        if key in self._ended:
            return
        self._ended.add(key)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._failed:
            self.log.mark_evicted(self.work_of(key))
            self.pod_evicted(key)
        else:
            self.log.mark_ended(self.work_of(key), now())

    def _finish(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.group.create_task(self._write_end(key))

    async def _write_end(self, key: Key) -> None:
        async with self._writes:
            await persist(lambda: self.finish_pod(key))


async def complete_unless_evicted(compute: Client, namespace: str, pod: str) -> None:
    """End a pod of the compute cluster as its node would, unless it has ended by an eviction."""
    with contextlib.suppress(errors.NotFound, errors.Invalid):
        await complete_pod(compute, namespace, pod)
