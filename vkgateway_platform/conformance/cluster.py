"""Checks of a cluster before a run: its version, and leftovers of an earlier run."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from vkgateway.api.errors import UnavailableError
from vkgateway.api.objects import decode_object
from vkgateway.kube.client import Client
from vkgateway.kube.errors import Conflict, NotFound
from vkgateway.kube.resources import NAMESPACES

NAMESPACE_LABEL = "e2e-framework"
"""Label of the suite on every namespace that it creates."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


async def server_version(kubeconfig: Path) -> str:
    """Return the release of the API server: `1.36.3`.

    Raises:
        ApiError: the API server does not answer.
        UnavailableError: the API server reports no release.
    """
    async with Client.from_kubeconfig(kubeconfig) as client:
        git_version = msgspec.json.decode(await client.request("GET", "/version"), type=_Version).git_version
    found = re.match(r"v?(\d+\.\d+\.\d+)", git_version)
    if found is None:
        raise UnavailableError(f"the API server of {kubeconfig} reports no release: {git_version!r}")
    return found[1]


async def remove_leftovers(kubeconfig: Path) -> int:
    """Delete the namespaces of an interrupted run, without waiting for their end; return how many there were."""
    async with Client.from_kubeconfig(kubeconfig) as client:
        page = await client.list_all(NAMESPACES, label_selector=NAMESPACE_LABEL)
        names = [decode_object(item).metadata.name for item in page.items]
        for name in names:
            try:
                await client.delete(NAMESPACES, name)
            except (NotFound, Conflict):  # already being deleted
                continue
    return len(names)
