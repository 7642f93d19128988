"""Pods of the hollow kubelet: read on request, and watched while a stream is open."""

from __future__ import annotations

import asyncio

import msgspec

from vkgateway.api.names import TENANT_LABEL
from vkgateway.api.objects import Meta
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import PODS


class _Container(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    containers: tuple[_Container, ...] = ()


class _Status(msgspec.Struct):
    phase: str = ""


class Pod(msgspec.Struct):
    """A pod on a hollow node."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_running(self) -> bool:
        """Whether its containers run."""
        return self.metadata.deletion_timestamp is None and self.status.phase == "Running"

    @property
    def tenant_name(self) -> str:
        """The pod's tenant; empty for other pods."""
        return self.metadata.labels.get(TENANT_LABEL, "")

    def has_container(self, container: str) -> bool:
        """Return whether a container of that name runs in the pod."""
        return any(found.name == container for found in self.spec.containers)


async def get_pod(client: Client, namespace: str, name: str) -> Pod:
    """Return the current state of a pod. Raises ApiError."""
    return _decode(await client.get(PODS, name, namespace=namespace))


async def wait_until_ended(client: Client, pod: Pod) -> None:
    """Wait until the containers of a pod have ended."""
    end = asyncio.Event()
    meta = pod.metadata

    def judge(*_change: Pod | None) -> None:
        known = reflector.store.get(meta.key)
        if reflector.is_complete and (known is None or known.metadata.uid != meta.uid or not known.is_running):
            end.set()

    reflector: Reflector[Pod] = Reflector(
        client,
        PODS,
        decode=_decode,
        on_change=judge,
        on_complete=judge,
        namespace=meta.namespace,
        field_selector=f"metadata.name={meta.name}",
    )
    watch = asyncio.create_task(reflector.run(), name="pod-end")
    try:
        await end.wait()
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


_decode = msgspec.json.Decoder(Pod).decode
