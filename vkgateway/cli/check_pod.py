"""The pod of `vkgateway check`: creation in the tenant, its progress, and its log."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.api.objects import Condition, ContainerStatus, find_condition
from vkgateway.cli.cluster import fetch_kubeconfig
from vkgateway.cli.progress import Progress
from vkgateway.cli.tenant_pods import tenant_client
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS

_NAME = "check"
_NAMESPACE = "default"
_POLL_SECONDS = 0.2


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


async def run_pod(management: Client, tenant: str, *, image: str, timeout: float) -> None:
    """Create a pod in the tenant, wait until it runs, and read its log through the tenant's API server.

    Raises:
        UnavailableError: the tenant's API server does not answer, the pod does not run within `timeout` seconds, or its
            log cannot be read.
    """
    document = await fetch_kubeconfig(management, tenant)
    async with tenant_client(document, tenant) as client:
        with Progress() as progress:
            try:
                await _create_pod(client, pod_manifest(image), progress, timeout=timeout)
                await _wait_until_running(client, progress, timeout=timeout)
            except errors.Unreachable as error:
                why = str(error.__cause__ or error)
                message = f"the API server of tenant {tenant!r} at {client.server} is unreachable from here: {why}"
                raise UnavailableError(message, hint="Check NetworkPolicies and routes to this address.") from error
            await _read_log(client, progress)


def pod_manifest(image: str) -> dict[str, Any]:
    """Return a pod of the Pod Security level `restricted`."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "main",
        "image": image,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _NAME, "namespace": _NAMESPACE},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


async def _create_pod(client: Client, manifest: dict[str, Any], progress: Progress, *, timeout: float) -> None:
    """Create the pod, as soon as the new namespace has its service account."""
    started = progress.elapsed_seconds
    while True:
        try:
            await client.create(PODS, manifest, namespace=_NAMESPACE)
        except errors.ApiError as error:
            if not isinstance(error, errors.Forbidden) and not error.is_transient:
                raise
            if progress.elapsed_seconds - started > timeout:
                raise UnavailableError(f"the tenant does not accept a pod: {error}") from error
            await asyncio.sleep(_POLL_SECONDS)
        else:
            progress.done("pod created")
            return


async def _wait_until_running(client: Client, progress: Progress, *, timeout: float) -> None:
    started = progress.elapsed_seconds
    while True:
        pod = msgspec.json.decode(await client.get(PODS, _NAME, namespace=_NAMESPACE), type=_Pod)
        if pod.status.phase in ("Running", "Succeeded"):
            progress.done(f"pod runs on {pod.spec.node_name}")
            return
        reason = pending_reason(pod)
        if pod.status.phase == "Failed":
            raise UnavailableError(f"the pod failed: {reason}")
        if progress.elapsed_seconds - started > timeout:
            raise UnavailableError(
                f"the pod does not run after {timeout:.0f} s: {reason}",
                hint="--image and --pool select another image and pool; with the chart, test.image and test.pool.",
            )
        progress(f"pod: {reason}")
        await asyncio.sleep(_POLL_SECONDS)


def pending_reason(pod: _Pod) -> str:
    """Return why a pod does not run."""
    if pod.status.message or pod.status.reason:
        return f"{pod.status.reason}: {pod.status.message}".strip(": ")
    for container in pod.status.container_statuses:
        if (waiting := container.state.waiting) is not None:
            return f"{waiting.reason}: {waiting.message}".strip(": ")
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status != "True":
        return f"{scheduled.reason}: {scheduled.message}".strip(": ")
    return "waiting for the compute cluster" if scheduled is not None else "waiting for the scheduler"


async def _read_log(client: Client, progress: Progress) -> None:
    """Read the pod's log: the tenant's API server calls the gateway's kubelet endpoint for it."""
    try:
        await client.get(PODS, _NAME, namespace=_NAMESPACE, subresource="log")
    except VkgatewayError as error:
        raise UnavailableError(
            f"the pod's log cannot be read: {error}",
            hint="The tenant's API server must reach the gateway's kubelet endpoint (Service vkgateway-kubelet).",
        ) from error
    progress.done("log read through the tenant's API server")
