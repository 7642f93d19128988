"""The wait of `up` for tenants' API servers, which the gateway starts."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.api.types import Tenant
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import TENANTS
from vkgateway.planes.plane_files import PlaneFiles
from vkgateway_platform.embedded import processes

WAIT_SECONDS: Final = 60.0
"""Seconds that `up` waits: each start takes a small machine four seconds of CPU time, and there may be many."""
_POLL: Final = 0.5

_decode = msgspec.json.Decoder(Tenant).decode


async def list_ready(api: Client) -> list[str]:
    """Return the names of the tenants that were ready before; others are not waited for."""
    page = await api.list_all(TENANTS)
    tenants = [_decode(bytes(item)) for item in page.items]
    return sorted(
        tenant.metadata.name
        for tenant in tenants
        if tenant.status.phase == "Ready" and tenant.metadata.deletion_timestamp is None
    )


async def wait_for_tenants(
    names: Collection[str],
    serves: Callable[[str], Awaitable[bool]],
    *,
    within: float = WAIT_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> str:
    """Wait up to `within` seconds for the API servers of all these tenants; return a summary.

    A tenant that does not answer is no failure of the platform: the gateway keeps trying.
    """
    if not names:
        return "none yet"
    deadline = clock.monotonic() + within
    missing = [name for name in names if not await serves(name)]
    while missing and clock.monotonic() < deadline:
        await clock.sleep(_POLL)
        missing = [name for name in missing if not await serves(name)]
    summary = f"{len(names) - len(missing)} of {len(names)} API servers answer"
    if not missing:
        return summary
    named = ", ".join(missing[:3]) + (" and others" if len(missing) > 3 else "")
    return f"{summary}; not yet: {named}; see `vkgateway tenant list`"


def serving_check(folder: Path) -> Callable[[str], Awaitable[bool]]:
    """Return a check of whether a tenant's API server answers its admin; `folder` has a directory per tenant."""

    async def answers(name: str) -> bool:
        kubeconfig = PlaneFiles(folder / name).kubeconfig_path("admin")
        with contextlib.suppress(VkgatewayError):  # the kubeconfig does not exist yet
            async with Client.from_kubeconfig(kubeconfig, name=f"tenant {name}") as client:
                return await processes.api_ready(client)
        return False

    return answers
