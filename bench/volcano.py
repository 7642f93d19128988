"""Volcano in the compute cluster: its scheduler and controllers as processes of the platform, its kinds, its gangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from bench.platform import Platform
from bench.timeline import now
from operators import published
from operators.programs import VOLCANO
from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CRDS, Resource
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.steps import Report

VERSION: Final = VOLCANO.version
SCHEDULER: Final = "volcano"
"""Name of its scheduler for pods."""
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
POD_GROUPS: Final = Resource("apis/scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup")
QUEUES: Final = Resource("apis/scheduling.volcano.sh/v1beta1", "queues", "Queue", namespaced=False)
_GROUP: Final = "volcano"
_READY_WITHIN: Final = 60.0


@contextlib.asynccontextmanager
async def run_volcano(
    platform: Platform, *, folder: Path, report: Report, configuration: Path | None = None
) -> AsyncIterator[None]:
    """Run Volcano in the compute cluster until the block ends.

    `folder` is the result of `provide_programs`. `configuration` is a file for the scheduler; None: that of the chart.

    The setup follows its Helm chart, without the webhooks, which only
    complete and validate what users write.
    """
    documents = [*_read_definitions(folder / "crds"), *_read_definitions(folder / "crds-jobflow")]
    report("starting Volcano")
    await apply_objects(platform.compute, documents, field_manager="bench")
    try:
        for spec in _process_specs(
            folder,
            kubeconfig=platform.paths.admin_kubeconfig,
            configuration=configuration or folder / "scheduler.conf",
        ):
            await platform.supervisor.ensure_process(spec)
        await _wait_queue_open(platform.compute)
        yield
    finally:
        await platform.supervisor.remove_group(_GROUP)
        for document in documents:
            with contextlib.suppress(errors.NotFound):
                await platform.compute.delete(CRDS, document["metadata"]["name"])


async def create_group(client: Client, name: str, *, namespace: str, members: int, resources: dict[str, str]) -> None:
    """Create a PodGroup, whose annotated pods start together or not at all."""
    await client.create(POD_GROUPS, pod_group(name, members=members, resources=resources), namespace=namespace)


async def delete_group(client: Client, name: str, *, namespace: str) -> None:
    """Delete the PodGroup of an ended job. It would continue to count as future work."""
    await client.delete(POD_GROUPS, name, namespace=namespace)


def pod_group(name: str, *, members: int, resources: dict[str, str]) -> dict[str, Any]:
    """Return a gang of all its members. `resources` is their total request."""
    return {
        "apiVersion": POD_GROUPS.api_version,
        "kind": POD_GROUPS.kind,
        "metadata": {"name": name},
        "spec": {"minMember": members, "minResources": resources, "queue": "default"},
    }


async def provide_programs(*, report: Report) -> Path:
    """Return the directory with Volcano's programs, built if it does not exist."""
    return await published.provide_programs(VOLCANO, report=report.done)


def _read_definitions(folder: Path) -> list[dict[str, Any]]:
    texts = (file.read_text() for file in sorted(folder.glob("*.yaml")))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def _process_specs(folder: Path, *, kubeconfig: Path, configuration: Path) -> Sequence[ProcessSpec]:
    common = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--kube-api-qps=2000", "--kube-api-burst=4000")
    scheduler = (str(folder / "vc-scheduler"), f"--scheduler-conf={configuration}", "--cache-dumper=false")
    controllers = (str(folder / "vc-controller-manager"),)
    return (
        ProcessSpec(name=f"{_GROUP}/controller-manager", argv=(*controllers, *common)),
        ProcessSpec(name=f"{_GROUP}/scheduler", argv=(*scheduler, *common)),
    )


class _QueueStatus(msgspec.Struct):
    state: str = ""


class _Queue(msgspec.Struct):
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)


async def _wait_queue_open(client: Client) -> None:
    """Wait for the default queue, which the scheduler creates and the controllers open. Then both are running."""
    deadline = now() + _READY_WITHIN
    while now() < deadline:
        with contextlib.suppress(errors.NotFound):
            if msgspec.json.decode(await client.get(QUEUES, "default"), type=_Queue).status.state == "Open":
                return
        await asyncio.sleep(0.2)
    raise UnavailableError(f"Volcano's queue is not open after {_READY_WITHIN:.0f} s")
