"""Kueue in the compute cluster: its controller as a process of the platform, its queues and Workloads."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.flows import create_namespaces
from bench.platform import Platform
from bench.pods import GPU
from bench.queueload import BORROWING, QUOTA
from bench.timeline import now
from operators import kueue, published
from operators.programs import KUEUE
from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CRDS, JOBS, SECRETS, Resource
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.ports import is_free
from vkgateway_platform.embedded.steps import Report

VERSION: Final = KUEUE.version
WORKLOADS: Final = Resource(f"apis/kueue.x-k8s.io/{kueue.API_VERSION}", "workloads", "Workload")
_API_VERSION: Final = WORKLOADS.api_version
CLUSTER_QUEUES: Final = Resource(WORKLOADS.prefix, "clusterqueues", "ClusterQueue", namespaced=False)
LOCAL_QUEUES: Final = Resource(WORKLOADS.prefix, "localqueues", "LocalQueue")
FLAVORS: Final = Resource(WORKLOADS.prefix, "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES: Final = Resource(WORKLOADS.prefix, "topologies", "Topology", namespaced=False)
PROCESS: Final = "kueue"
_FLAVOR: Final = "default"
_WEBHOOKS, _HEALTH = 10443, 10444
"""Ports of the controller's webhooks and health checks."""
_READY_WITHIN: Final = 60.0
_REMOVED_WITHIN: Final = 300.0
_TIMEOUT: Final = 120.0
RATE: Final = 2000
"""Limit of the controller's requests per second, as for Volcano: no limit on this machine."""


async def provide_programs(*, report: Report) -> Path:
    """Return the directory with Kueue's controller, built if it does not exist."""
    return await published.provide_programs(KUEUE, report=report.done)


@contextlib.asynccontextmanager
async def run_kueue(
    platform: Platform, *, program: Path, cohorts: Mapping[str, str], rate: int | None, report: Report
) -> AsyncIterator[None]:
    """Run Kueue in the compute cluster with a namespace and a ClusterQueue for each queue, until the block ends.

    `program` is the result of `provide_programs`, `cohorts` has the cohort of each queue, and `rate` limits the
    controller's requests per second; None: Kueue's default.
    """
    report("starting Kueue")
    folder = platform.paths.data_dir / PROCESS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    argv = kueue.prepare_controller(program, folder, webhooks=_WEBHOOKS, health=_HEALTH, rate=rate)
    definitions = list(kueue.read_definitions(program, webhooks=_WEBHOOKS))
    client = platform.compute
    await apply_objects(client, [*definitions, *kueue.expected_objects()], field_manager="bench")
    try:
        environment = {"KUBECONFIG": str(platform.paths.admin_kubeconfig)}
        await platform.supervisor.ensure_process(ProcessSpec(name=PROCESS, argv=argv, env=environment))
        kueue.mount_certificate(folder, await _read_certificate(client))
        await _wait_until(lambda: not is_free("127.0.0.1", _WEBHOOKS), "Kueue does not listen")
        await create_namespaces(platform, list(cohorts))
        await apply_objects(client, queue_objects(cohorts), field_manager="bench")
        await _wait_active(client, len(cohorts))
        yield
    finally:
        await _remove_objects(client, cohorts, report=report)
        await platform.supervisor.remove_process(PROCESS)
        for definition in definitions:
            with contextlib.suppress(errors.NotFound):
                await client.delete(CRDS, definition["metadata"]["name"])
        await _wait_definitions_removed(client, definitions)
        with contextlib.suppress(errors.NotFound):
            await client.delete(SECRETS, kueue.SECRET, namespace=kueue.NAMESPACE)


async def _remove_objects(client: Client, cohorts: Mapping[str, str], *, report: Report) -> None:
    """Delete Kueue's objects while the controller runs, because it must remove their finalizers."""
    report("deleting Kueue's objects")
    for queue in cohorts:
        for resource in (JOBS, WORKLOADS, LOCAL_QUEUES):
            path, params = resource.path(namespace=queue), {"propagationPolicy": "Background"}
            await client.request("DELETE", path, params=params, timeout=_TIMEOUT)
    for resource in (CLUSTER_QUEUES, FLAVORS, TOPOLOGIES):
        await client.request("DELETE", resource.path(), timeout=_TIMEOUT)
    for resource in (WORKLOADS, CLUSTER_QUEUES, FLAVORS, TOPOLOGIES):
        await _wait_removed(client, resource)


async def _wait_removed(client: Client, resource: Resource) -> None:
    """Wait until no object of a kind is left, or the kind is not served."""
    deadline = now() + _REMOVED_WITHIN
    while await _has_objects(client, resource):
        if now() > deadline:
            raise UnavailableError(f"{resource.plural} of Kueue still exist after {_REMOVED_WITHIN:.0f} s")
        await asyncio.sleep(0.2)


async def _wait_definitions_removed(client: Client, definitions: Sequence[dict[str, Any]]) -> None:
    """Wait until the definitions are removed: until then, the server refuses to create them again."""
    deadline = now() + _REMOVED_WITHIN
    for definition in definitions:
        with contextlib.suppress(errors.NotFound):
            while now() < deadline:
                await client.get(CRDS, definition["metadata"]["name"])
                await asyncio.sleep(0.2)
            raise UnavailableError(f"definitions of Kueue still exist after {_REMOVED_WITHIN:.0f} s")


async def _has_objects(client: Client, resource: Resource) -> bool:
    with contextlib.suppress(errors.NotFound):
        async for page in client.list_pages(resource, limit=1):
            return bool(page.items)
    return False


def queue_objects(cohorts: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a flavor, and for each queue its ClusterQueue, and its LocalQueue in the namespace of the same name."""

    def queue(kind: str, name: str, spec: dict[str, Any], **metadata: str) -> dict[str, Any]:
        return {"apiVersion": _API_VERSION, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}

    documents = [queue("ResourceFlavor", _FLAVOR, {})]
    for name, cohort in cohorts.items():
        resource = {"name": GPU, "nominalQuota": str(QUOTA), "borrowingLimit": str(BORROWING)}
        flavors = [{"name": _FLAVOR, "resources": [resource]}]
        spec = {
            "cohortName": cohort,
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        }
        documents += [
            queue("ClusterQueue", name, spec),
            queue("LocalQueue", name, {"clusterQueue": name}, namespace=name),
        ]
    return documents


async def _read_certificate(client: Client) -> dict[str, str]:
    """Wait until the controller has written its certificate to the Secret, and return the content."""

    class _Secret(msgspec.Struct):
        data: dict[str, str] | None = None

    deadline = now() + _READY_WITHIN
    while now() < deadline:
        found = msgspec.json.decode(await client.get(SECRETS, kueue.SECRET, namespace=kueue.NAMESPACE), type=_Secret)
        if found.data:
            return found.data
        await asyncio.sleep(0.2)
    raise UnavailableError(f"Kueue has no certificate after {_READY_WITHIN:.0f} s")


async def _wait_until(is_done: Callable[[], bool], failure: str) -> None:
    deadline = now() + _READY_WITHIN
    while not is_done():
        if now() > deadline:
            raise UnavailableError(f"{failure} after {_READY_WITHIN:.0f} s")
        await asyncio.sleep(0.2)


async def _wait_active(client: Client, count: int) -> None:
    """Wait until this number of ClusterQueues is active."""
    deadline = now() + _READY_WITHIN
    while True:
        page = await client.list_all(CLUSTER_QUEUES)
        if sum(_is_active(item) for item in page.items) >= count:
            return
        if now() > deadline:
            raise UnavailableError(f"Kueue's queues are not active after {_READY_WITHIN:.0f} s")
        await asyncio.sleep(0.2)


class _Condition(msgspec.Struct):
    type: str
    status: str


class _QueueStatus(msgspec.Struct):
    conditions: list[_Condition] = []


class _Queue(msgspec.Struct):
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)


def _is_active(queue: bytes) -> bool:
    conditions = msgspec.json.decode(queue, type=_Queue).status.conditions
    return any((each.type, each.status) == ("Active", "True") for each in conditions)
