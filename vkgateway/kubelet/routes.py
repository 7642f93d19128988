"""Which endpoint answers which path: those of the kubelet API, and the webhook that gates pods."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.kubelet import gate_webhook, info, interactive, logs, metricsapi, runcommand, stats
from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply, Request

_READ_METHODS: Final = ("GET",)
_STREAM_METHODS: Final = ("GET", "POST")
"""GET is for browsers' WebSockets."""
_PROXIED_PATH: Final = re.compile(r"/api/v1/nodes/(?:https?:)?([^/:]+)(?::\d*)?/proxy(?:/|$)")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """For whom a request is: a virtual node, and the tenant that the path names; empty where it does not say."""

    node: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint: how many segments may follow its path, the methods, whether it is a stream."""

    endpoint: Callable[..., Awaitable[Reply | None]]
    argument_counts: tuple[int, ...]
    methods: tuple[str, ...]
    is_stream: bool = False
    path_length: int = 1
    """Segments of its own path."""

    async def __call__(self, call: Call) -> Reply | None:
        """Answer the call; its path has the right number of segments."""
        return await self.endpoint(call, *call.request.path[self.path_length :])


_NO_ARGUMENTS: Final = (0,)
ROUTES: Final[dict[tuple[str, ...], Route]] = {
    ("containerLogs",): Route(logs.serve_container_logs, (3,), _READ_METHODS, is_stream=True),
    ("exec",): Route(interactive.serve_exec, (3, 4), _STREAM_METHODS, is_stream=True),
    ("run",): Route(runcommand.serve_run, (3, 4), ("POST",), is_stream=True),
    ("attach",): Route(interactive.serve_attach, (3, 4), _STREAM_METHODS, is_stream=True),
    ("portForward",): Route(interactive.serve_port_forward, (2, 3), _STREAM_METHODS, is_stream=True),
    ("apis", metricsapi.GROUP): Route(metricsapi.serve_metrics_api, (1, 2, 3, 4, 5), _READ_METHODS, path_length=2),
    ("admission",): Route(gate_webhook.serve_admission, (1,), ("POST",)),
    ("healthz",): Route(info.serve_healthz, _NO_ARGUMENTS, _READ_METHODS),
    ("configz",): Route(info.serve_configz, _NO_ARGUMENTS, _READ_METHODS),
    ("pods",): Route(info.serve_pods, _NO_ARGUMENTS, _READ_METHODS),
    ("runningpods",): Route(info.serve_running_pods, _NO_ARGUMENTS, _READ_METHODS),
    ("stats", "summary"): Route(stats.serve_summary, _NO_ARGUMENTS, _READ_METHODS, path_length=2),
    ("metrics",): Route(stats.serve_kubelet_metrics, _NO_ARGUMENTS, _READ_METHODS),
    ("metrics", "resource"): Route(stats.serve_resource_metrics, _NO_ARGUMENTS, _READ_METHODS, path_length=2),
    ("metrics", "cadvisor"): Route(stats.serve_cadvisor_metrics, _NO_ARGUMENTS, _READ_METHODS, path_length=2),
    ("metrics", "probes"): Route(stats.serve_probe_metrics, _NO_ARGUMENTS, _READ_METHODS, path_length=2),
}


def metrics_path(tenant: str, node: str) -> str:
    """Where figures of a virtual node are read by whoever has a token only: what `resolve_target` understands."""
    return f"/tenants/{tenant}/nodes/{node}/metrics/resource"


def resolve_target(request: Request) -> tuple[Request, RequestTarget]:
    """The request as a kubelet would get it, and whom it is for.

    All virtual nodes of all tenants share an address. Which one is meant says a path that begins with
    /tenants/NAME/nodes/NAME or /nodes/NAME, as the nodes' annotation has it for metrics-server; or the API server,
    whose proxy for nodes tells what it was asked itself. The tenant in a path is a claim, which `callers` sees to.
    """
    path, tenant = request.path, ""
    if len(path) > 2 and path[0] == "tenants":
        path, tenant = path[2:], path[1]
    if len(path) > 2 and path[0] == "nodes":
        return replace(request, path=path[2:]), RequestTarget(path[1], tenant)
    told = _PROXIED_PATH.match(request.header("x-forwarded-uri"))
    return replace(request, path=path), RequestTarget(told.group(1) if told else "", tenant)


def find_route(request: Request) -> Route | Reply:
    """The route of a request, or the refusal."""
    path = request.path
    route = ROUTES.get(path[:2]) or ROUTES.get(path[:1])
    if route is None or len(path) - route.path_length not in route.argument_counts:
        shown = "/" + "/".join(path)
        return Reply.from_text(404, f"the virtual node's kubelet does not serve {shown[:200]!r}")
    if request.method not in route.methods:
        return Reply.from_text(405, f"{request.method} is not allowed here, only {' and '.join(route.methods)}")
    return route
