"""A gateway process whose tenants' API servers are fakes: `python -m tests.support.replica SETTINGS TENANT=URL...`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import VkgatewayError
from vkgateway.api.types import Tenant
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.kube.client import Client
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.drivers.base import DriverListener
from vkgateway.serve import daemon
from vkgateway.serve.dependencies import Dependencies
from vkgateway.settings import file as settingsfile
from vkgateway.settings.config import Config
from vkgateway.tenants.interfaces import ApiServerAccess, OnStep


class ExistingPlanes:
    """Control planes that run already, at a URL each."""

    name_servers = None

    def __init__(self, urls: dict[str, str], *, gate: WriteGate | None) -> None:
        self._urls = urls
        self._gate = gate

    def template_names(self) -> Collection[str]:
        return ["default"]

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:
        name = tenant.metadata.name
        url = self._urls[name]
        parts = urlsplit(url)
        client = Client(url, name=name, single_server=True, streaming_lists=False).guard_writes(self._gate)
        return ApiServerAccess(client=client, url=url, host=parts.hostname or "", port=parts.port or 0)

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        return await self.ensure(tenant, on_step=_ignore_step)

    async def api_server_endpoints(
        self, tenant: str, cluster: ClusterIdentity, *, listening: Endpoint
    ) -> Collection[Endpoint]:
        return [listening]

    async def run(self, listener: DriverListener) -> None:
        """Nothing changes by itself."""

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        """Nothing is kept."""

    async def stop(self, name: str) -> None:
        """Nothing to stop."""

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        """Nothing to remove."""

    async def close(self) -> None:
        """Nothing to close."""


async def _ignore_step(reason: str, message: str) -> None:
    """Ignore the step."""


def main(settings_file: str, *tenants: str) -> None:
    """Run the gateway until SIGTERM."""
    urls = dict(tenant.split("=", 1) for tenant in tenants)

    def existing_planes(_: Config, shared: Dependencies, **_ranges: object) -> ExistingPlanes:
        return ExistingPlanes(urls, gate=shared.gate)

    setattr(daemon, "build_control_planes", existing_planes)  # noqa: B010 - not exported
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(daemon.run_daemon(settingsfile.load_settings(Path(settings_file))))
        except VkgatewayError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])
