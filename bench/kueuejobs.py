"""Kueue's workloads as suspended Jobs in the compute cluster, whose pods run on hollow nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bench.flows import POOL_LABEL, pod_namespace
from bench.persistence import persist
from bench.platform import Platform
from bench.pods import PodKind, pod_manifest
from bench.queueload import Work, WorkLog
from bench.queuepods import PodsRun, complete_unless_evicted
from bench.timeline import Key, Mark, Timeline
from bench.watching import watch_pods
from vkgateway.kube import errors
from vkgateway.kube.resources import JOBS

_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_TIMEOUT: Final = 120.0


class JobRun(PodsRun):
    """One run of workloads as Jobs. Kueue starts a Job by ending its suspension, and then it gets its pod."""

    def __init__(
        self,
        platform: Platform,
        works: Iterable[Work],
        cohorts: Mapping[str, str],
        *,
        run: str,
        log: WorkLog,
        group: asyncio.TaskGroup,
    ) -> None:
        super().__init__(log=log, group=group)
        self._client = platform.compute
        self._works = {(work.queue, work.name): work for work in works}
        self._cohorts = cohorts
        self._run = run

    async def create(self, work: Work) -> None:
        """Create the Job of a workload."""
        self.log.mark_created(work)
        manifest = job_manifest(work, cohort=self._cohorts[work.queue], run=self._run)

        async def create() -> None:
            with contextlib.suppress(errors.AlreadyExists):
                await self._client.create(JOBS, manifest, namespace=work.queue, timeout=_TIMEOUT)

        await persist(create)

    async def watch(self, opened: asyncio.Event) -> None:
        """Watch the pods of all Jobs until cancelled."""
        async with watch_pods([(self._client, pod_namespace)], run=self._run, timeline=Timeline(self._handle_pod)):
            opened.set()
            await asyncio.Event().wait()

    def work_of(self, key: Key) -> Work:
        queue, pod = key
        return self._works[queue, pod.rpartition("-")[0]]

    def pod_evicted(self, key: Key) -> None:
        """See `PodsRun`. The controller of Jobs creates the next pod when Kueue admits the Job again."""

    async def finish_pod(self, key: Key) -> None:
        await complete_unless_evicted(self._client, *key)

    def _handle_pod(self, mark: Mark, key: Key) -> None:
        if mark == "seen":
            self.pod_admitted(key)
        elif mark == "ready":
            self.start_pod(key)
        else:
            self.handle_end(mark, key)


def job_manifest(work: Work, *, cohort: str, run: str) -> dict[str, Any]:
    """Return a suspended Job of one pod that requests all units on the machine of its cohort."""
    kind = PodKind(
        run=run,
        gpus=work.units,
        restart="Never",
        priority_class=work.kind,
        selector={POOL_LABEL: cohort},
    )
    template = pod_manifest("", kind)
    # Kueue would count cpu and memory, too.
    template["spec"]["containers"][0]["resources"].pop("requests")
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": work.name, "labels": {_QUEUE_LABEL: work.queue}},
        "spec": {
            "suspend": True,
            "backoffLimit": 1000,
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    }
