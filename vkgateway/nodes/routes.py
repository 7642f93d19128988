"""Routes of the endpoints: the kubelet API and the webhook that gates pods."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.nodes import admission_webhooks, info, interactive, logs, metricsapi, runcommand, stats
from vkgateway.nodes.call import Call
from vkgateway.nodes.http import Reply, Request

_READ_METHODS: Final = ("GET",)
_STREAM_METHODS: Final = ("GET", "POST")
"""WebSockets of browsers use GET."""
_PROXIED_PATH: Final = re.compile(r"/api/v1/nodes/(?:https?:)?([^/:]+)(?::\d*)?/proxy(?:/|$)")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The virtual node of a request and the tenant in its path. Empty if unknown."""

    node: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint with its numbers of further path segments, its methods, and whether it is a stream."""

    endpoint: Callable[..., Awaitable[Reply | None]]
    argument_counts: tuple[int, ...]
    methods: tuple[str, ...]
    is_stream: bool = False
    path_length: int = 1
    """Number of segments of the endpoint's path."""

    async def __call__(self, call: Call) -> Reply | None:
        """Answer a call whose path has a valid number of segments."""
        return await self.endpoint(call, *call.request.path[self.path_length :])


_NO_ARGUMENTS: Final = (0,)
ROUTES: Final[dict[tuple[str, ...], Route]] = {
    ("containerLogs",): Route(logs.serve_container_logs, (3,), _READ_METHODS, is_stream=True),
    ("exec",): Route(interactive.serve_exec, (3, 4), _STREAM_METHODS, is_stream=True),
    ("run",): Route(runcommand.serve_run, (3, 4), ("POST",), is_stream=True),
    ("attach",): Route(interactive.serve_attach, (3, 4), _STREAM_METHODS, is_stream=True),
    ("portForward",): Route(interactive.serve_port_forward, (2, 3), _STREAM_METHODS, is_stream=True),
    ("apis", metricsapi.GROUP): Route(metricsapi.serve_metrics_api, (1, 2, 3, 4, 5), _READ_METHODS, path_length=2),
    ("admission",): Route(admission_webhooks.serve_admission, (1,), ("POST",)),
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
    """Return the path of a virtual node's metrics for clients with a token; see `resolve_target`."""
    return f"/tenants/{tenant}/nodes/{node}/metrics/resource"


def resolve_target(request: Request) -> tuple[Request, RequestTarget]:
    """Return the request in a kubelet's form, and its target.

    All virtual nodes of all tenants share an address. The path selects the node with the prefix
    /tenants/NAME/nodes/NAME or /nodes/NAME; metrics-server reads such a path from the node's annotation. An API
    server's node proxy passes the original path in a header. `authentication` verifies the tenant in a path.
    """
    path, tenant = request.path, ""
    if len(path) > 2 and path[0] == "tenants":
        path, tenant = path[2:], path[1]
    if len(path) > 2 and path[0] == "nodes":
        return replace(request, path=path[2:]), RequestTarget(path[1], tenant)
    proxied = _PROXIED_PATH.match(request.header("x-forwarded-uri"))
    return replace(request, path=path), RequestTarget(proxied.group(1) if proxied else "", tenant)


def find_route(request: Request) -> Route | Reply:
    """Return the route of a request, or a reply that refuses the request."""
    path = request.path
    route = ROUTES.get(path[:2]) or ROUTES.get(path[:1])
    if route is None or len(path) - route.path_length not in route.argument_counts:
        full_path = "/" + "/".join(path)
        return Reply.from_text(404, f"the virtual node's kubelet does not serve {full_path[:200]!r}")
    if request.method not in route.methods:
        return Reply.from_text(405, f"{request.method} is not allowed here, only {' and '.join(route.methods)}")
    return route
