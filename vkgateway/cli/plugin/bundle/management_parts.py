"""Parts of the bundle of the management cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import CONTROL_PLANE_LABEL, SYSTEM_NAMESPACE
from vkgateway.cli.gateway_state import request_answer
from vkgateway.cli.plugin.bundle import objects
from vkgateway.cli.plugin.bundle.parts import Content, Gathering, Part, as_json, newest_events
from vkgateway.cli.plugin.bundle.texts import redact_log
from vkgateway.cli.plugin.connection import local_data_dir
from vkgateway.cli.plugin.gateway import find_gateway, read_state, read_usage_days
from vkgateway.kube.resources import COMPUTE_CLUSTERS, EVENTS, LEASES, NODES, PODS, TENANTS
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport

_LOG_LINES: Final = 5000
_USAGE_DAYS: Final = 31
_METRIC_LINE: Final = re.compile(r"(?:# (?:HELP|TYPE) )?(?:vkgateway|process|python)_\w+[ {].*")
_GATEWAY_SELECTOR: Final = "app.kubernetes.io/name=vkgateway,app.kubernetes.io/component=gateway"


def management_parts(gathering: Gathering) -> Sequence[Part]:
    """Return the parts. With a tenant, those about tenants have only this one."""
    reads = _ManagementReads(gathering)
    tenant = gathering.tenant
    selector = f"{CONTROL_PLANE_LABEL}={tenant}" if tenant else CONTROL_PLANE_LABEL
    whose = f"tenant {tenant}" if tenant else "all tenants"
    return (
        gathering.caller_part(),
        gathering.status_part(),
        gathering.objects_part(
            "tenants.json", f"Tenants: {whose}", TENANTS, objects.redact_tenant, chosen=reads.is_chosen
        ),
        gathering.objects_part(
            "compute-clusters.json", "ComputeClusters", COMPUTE_CLUSTERS, objects.redact_compute_cluster
        ),
        gathering.objects_part("nodes.json", "nodes of the management cluster", NODES, objects.redact_node),
        gathering.objects_part(
            "gateway-pods.json",
            f"pods in {SYSTEM_NAMESPACE}",
            PODS,
            objects.redact_pod,
            namespace=SYSTEM_NAMESPACE,
        ),
        gathering.objects_part(
            "control-plane-pods.json",
            f"pods of control planes: {whose}",
            PODS,
            objects.redact_pod,
            label_selector=selector,
        ),
        gathering.objects_part(
            "leases.json", "Lease of the leading gateway", LEASES, objects.redact_lease, namespace=SYSTEM_NAMESPACE
        ),
        Part(file="events.json", content="events of Tenants, ComputeClusters and the gateway", read=reads.read_events),
        Part(file="gateway-state.json", content=f"pools, tenants and gangs: {whose}", read=reads.read_state),
        Part(file="usage.json", content=f"hours by UTC day, and budgets: {whose}", read=reads.read_usage),
        Part(file="gateway-metrics.txt", content="metrics of the gateway", read=reads.read_metrics),
        Part(file="gateway.log", content=f"last {_LOG_LINES} lines of each gateway's log", read=reads.read_logs),
        gathering.webhooks_part(),
    )


class _ManagementReads:
    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering

    def is_chosen(self, tenant: Mapping[str, Any]) -> bool:
        return self._gathering.tenant in ("", tenant["metadata"]["name"])

    async def read_events(self) -> Content:
        async def read(namespace: str) -> list[Any]:
            return await self._gathering.list_redacted(EVENTS, objects.redact_event, namespace=namespace)

        of_system, of_default = await asyncio.gather(read(SYSTEM_NAMESPACE), read("default"))
        kinds = ("Tenant", "ComputeCluster")
        found = [event for event in of_default if (event.get("involvedObject") or {}).get("kind") in kinds]
        return as_json(newest_events([*of_system, *found]))

    async def read_state(self) -> Content:
        state = await read_state(self._gathering.connection)
        return as_json(msgspec.to_builtins(self._filtered(state)))

    def _filtered(self, state: ArbiterReport) -> ArbiterReport:
        tenant, message = self._gathering.tenant, self._gathering.filter
        gangs = (gang for gang in state.gangs if tenant in ("", gang.tenant))
        return msgspec.structs.replace(
            state,
            tenants=tuple(row for row in state.tenants if tenant in ("", row.tenant)),
            gangs=tuple(msgspec.structs.replace(gang, message=message(gang.code, gang.message)) for gang in gangs),
        )

    async def read_usage(self) -> Content:
        gathering = self._gathering
        found = await read_usage_days(gathering.connection, days=_USAGE_DAYS, tenant=gathering.tenant)
        return as_json(msgspec.to_builtins(found))

    async def read_metrics(self) -> Content:
        endpoint, folder = find_gateway(self._gathering.connection)
        url, status, body = await request_answer("metrics", {}, folder, endpoint)
        if status != 200:
            raise UnavailableError(f"the gateway at {url} answers with HTTP status {status}")
        lines = [line for line in body.decode(errors="replace").splitlines() if _METRIC_LINE.fullmatch(line)]
        return Content("".join(f"{line}\n" for line in lines), items=len(lines))

    async def read_logs(self) -> Content:
        folder = local_data_dir(self._gathering.connection.config)
        texts = {"gateway": _local_log(folder)} if folder is not None else await self._pod_logs()
        include = self._gathering.include_messages
        found = {name: redact_log(text, include=include) for name, text in texts.items()}
        text = "".join(f"== {name}\n{lines}" for name, lines in found.items())
        return Content(text, items=sum(lines.count("\n") for lines in found.values()))

    async def _pod_logs(self) -> Mapping[str, str]:
        client = self._gathering.connection.client
        page = await client.list_all(PODS, namespace=SYSTEM_NAMESPACE, label_selector=_GATEWAY_SELECTOR)
        names = [msgspec.json.decode(item)["metadata"]["name"] for item in page.items]
        if not names:
            raise UnavailableError(f"no pod of the gateway is in the namespace {SYSTEM_NAMESPACE}")
        logs = {}
        for name in names:
            answer = await client.request(
                "GET", PODS.path(SYSTEM_NAMESPACE, name, "log"), params={"tailLines": _LOG_LINES}
            )
            logs[name] = answer.decode(errors="replace")
        return logs


def _local_log(folder: Any) -> str:
    from vkgateway.planes.supervisor.logs import last_lines
    from vkgateway.planes.supervisor.spec import SupervisorPaths

    with SupervisorPaths(folder).log_path("gateway").open("rb") as file:
        return last_lines(file, _LOG_LINES).decode(errors="replace")
