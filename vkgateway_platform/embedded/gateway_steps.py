"""Steps of `up` for the gateway: started or stopped, and the wait for the tenants' API servers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vkgateway.kube.client import Client
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded import gateway_process, tenants
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.processes import wait_until_serving
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.steps import Step


class GatewaySteps:
    """Steps of `up` for the gateway and its tenants."""

    def __init__(
        self, paths: PlatformPaths, *, record: PlatformRecord, cache_dir: Path | None, supervisor: SupervisorClient
    ) -> None:
        self._paths = paths
        self._record = record
        self._settings = gateway_process.gateway_settings(paths, record=record, cache_dir=cache_dir)
        self._supervisor = supervisor

    def build_steps(self, *, enabled: bool, api: Client) -> list[Step]:
        """Return the steps; they depend on a step named `definitions`."""
        if not enabled:
            return [Step(name="gateway", title="gateway", needs=("definitions",), run=self._stop_for_another)]
        return [
            Step(name="gateway", title="gateway", needs=("definitions",), run=self._start),
            Step(name="tenants", title="tenants", needs=("gateway",), run=partial(self._wait_for_tenants, api)),
        ]

    def stop_step(self) -> Step:
        return Step(name="gateway", title="gateway", run=self._stop)

    async def _stop_for_another(self) -> str:
        """Stop a gateway, and write its settings."""
        gateway_process.write_settings(self._paths, self._settings)
        return f"{await self._stop()}; `vkgateway serve --config {self._paths.gateway.config_file}` runs one by hand"

    async def _stop(self) -> str:
        if not await self._supervisor.list_processes(gateway_process.NAME):
            return "disabled"
        await self._supervisor.remove_process(gateway_process.NAME)
        return "stopped; tenants' control planes keep running"

    async def _start(self) -> None:
        await self._supervisor.ensure_process(gateway_process.process_spec(self._paths, self._settings))
        await wait_until_serving(
            lambda: gateway_process.is_ready(self._record), process=gateway_process.NAME, client=self._supervisor
        )

    async def _wait_for_tenants(self, api: Client) -> str:
        return await tenants.wait_for_tenants(
            await tenants.list_ready(api), tenants.serving_check(self._paths.tenants_dir)
        )
