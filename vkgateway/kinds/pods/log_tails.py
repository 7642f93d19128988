"""Last log lines of compute pods, read before a pod's deletion and recorded on it until its end."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from vkgateway.kinds.pods.translation import log_tails
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.requests import Params
from vkgateway.runtime.views.annotations import LOG_TAILS
from vkgateway.runtime.views.pods import ComputePodView

log = structlog.get_logger(__name__)

_READ_SECONDS: Final = 2.0
"""Seconds that a deletion waits for all logs of a pod; a kubelet answers within milliseconds."""
_READ_BYTES: Final = 256 * 1024
_decode: Final = msgspec.json.Decoder(dict[str, str]).decode


async def read_tails(client: Client, pod: ComputePodView) -> dict[str, str]:
    """Return the last lines of each container's log; a log that cannot be read in time is left out."""
    names = log_tails.readable_containers(msgspec.json.decode(pod.status))
    tails = await asyncio.gather(*(_read_tail(client, pod, name, containers=len(names)) for name in names))
    return {name: tail for name, tail in zip(names, tails, strict=True) if tail}


async def _read_tail(client: Client, pod: ComputePodView, container: str, *, containers: int) -> str:
    metadata = pod.metadata
    path = resources.PODS.path(metadata.namespace, metadata.name, "log")
    params: Params = {"container": container, "tailLines": log_tails.MAX_LINES, "limitBytes": _READ_BYTES}
    try:
        text = await client.request("GET", path, params=params, timeout=_READ_SECONDS)
    except errors.ApiError as error:
        log.info("log not kept", compute=client.name, pod=metadata.name, container=container, error=error.message)
        return ""
    return log_tails.cut_log(text, containers=containers)


def kept_tails(pod: ComputePodView) -> dict[str, str]:
    """Return the recorded log lines of a pod."""
    text = pod.metadata.annotations.get(LOG_TAILS)
    try:
        return _decode(text) if text else {}
    except msgspec.DecodeError:
        return {}
