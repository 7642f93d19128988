"""What is asked of a cluster before a run: its version, and that nothing of an earlier run is left."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from vkgateway.kube.client import Client
from vkgateway.kube.errors import Conflict, NotFound
from vkgateway.kube.resources import NAMESPACES
from vkgateway.model.errors import UnavailableError

NAMESPACE_LABEL = "e2e-framework"
"""The label that the suite puts on every namespace that it makes."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


class _Metadata(msgspec.Struct):
    name: str


class _Namespace(msgspec.Struct):
    metadata: _Metadata


async def server_version(kubeconfig: Path) -> str:
    """The release of the API server: `1.36.3`.

    Raises:
        ApiError: it does not answer.
        UnavailableError: it tells no release.
    """
    async with Client.from_kubeconfig(kubeconfig) as client:
        told = msgspec.json.decode(await client.request("GET", "/version"), type=_Version).git_version
    found = re.match(r"v?(\d+\.\d+\.\d+)", told)
    if found is None:
        raise UnavailableError(f"the API server of {kubeconfig} tells no release: {told!r}")
    return found[1]


async def remove_leftovers(kubeconfig: Path) -> int:
    """Delete the namespaces of a run that was cut short, without waiting for their end; how many there were."""
    async with Client.from_kubeconfig(kubeconfig) as client:
        page = await client.list_all(NAMESPACES, label_selector=NAMESPACE_LABEL)
        names = [msgspec.json.decode(item, type=_Namespace).metadata.name for item in page.items]
        for name in names:
            try:
                await client.delete(NAMESPACES, name)
            except (NotFound, Conflict):  # on its way already
                continue
    return len(names)
