"""Which endpoint answers which path: those of the kubelet API, and the webhook that gates pods."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.kubelet import gate, info, interactive, logs, metricsapi, runcommand, stats
from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply, Request

_READ: Final = ("GET",)
_STREAM: Final = ("GET", "POST")
"""GET is for browsers' WebSockets."""
_PROXIED: Final = re.compile(r"/api/v1/nodes/(?:https?:)?([^/:]+)(?::\d*)?/proxy(?:/|$)")


@dataclass(frozen=True, slots=True)
class Address:
    """For whom a request is: a virtual node, and the tenant that the path names; empty where it does not say."""

    node: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint: how many segments may follow its path, the methods, whether it is a stream."""

    endpoint: Callable[..., Awaitable[Reply | None]]
    arguments: tuple[int, ...]
    methods: tuple[str, ...]
    stream: bool = False
    length: int = 1
    """Segments of its own path."""

    async def __call__(self, call: Call) -> Reply | None:
        """Answer the call; its path has the right number of segments."""
        return await self.endpoint(call, *call.request.path[self.length :])


_NONE: Final = (0,)
ROUTES: Final[dict[tuple[str, ...], Route]] = {
    ("containerLogs",): Route(logs.container_logs, (3,), _READ, stream=True),
    ("exec",): Route(interactive.run, (3, 4), _STREAM, stream=True),
    ("run",): Route(runcommand.run_command, (3, 4), ("POST",), stream=True),
    ("attach",): Route(interactive.attach, (3, 4), _STREAM, stream=True),
    ("portForward",): Route(interactive.port_forward, (2, 3), _STREAM, stream=True),
    ("apis", metricsapi.GROUP): Route(metricsapi.metrics, (1, 2, 3, 4, 5), _READ, length=2),
    ("admission",): Route(gate.admission, (1,), ("POST",)),
    ("healthz",): Route(info.healthz, _NONE, _READ),
    ("configz",): Route(info.configz, _NONE, _READ),
    ("pods",): Route(info.pods, _NONE, _READ),
    ("runningpods",): Route(info.running_pods, _NONE, _READ),
    ("stats", "summary"): Route(stats.summary, _NONE, _READ, length=2),
    ("metrics",): Route(stats.own, _NONE, _READ),
    ("metrics", "resource"): Route(stats.resource, _NONE, _READ, length=2),
    ("metrics", "cadvisor"): Route(stats.cadvisor, _NONE, _READ, length=2),
    ("metrics", "probes"): Route(stats.probes, _NONE, _READ, length=2),
}


def metrics_path(tenant: str, node: str) -> str:
    """Where figures of a virtual node are read by whoever has a token only: what `addressed` understands."""
    return f"/tenants/{tenant}/nodes/{node}/metrics/resource"


def addressed(request: Request) -> tuple[Request, Address]:
    """The request as a kubelet would get it, and whom it is for.

    All virtual nodes of all tenants share an address. Which one is meant says a path that begins with
    /tenants/NAME/nodes/NAME or /nodes/NAME, as the nodes' annotation has it for metrics-server; or the API server,
    whose proxy for nodes tells what it was asked itself. The tenant in a path is a claim, which `callers` sees to.
    """
    path, tenant = request.path, ""
    if len(path) > 2 and path[0] == "tenants":
        path, tenant = path[2:], path[1]
    if len(path) > 2 and path[0] == "nodes":
        return replace(request, path=path[2:]), Address(path[1], tenant)
    told = _PROXIED.match(request.header("x-forwarded-uri"))
    return replace(request, path=path), Address(told.group(1) if told else "", tenant)


def find(request: Request) -> Route | Reply:
    """The route of a request, or the refusal."""
    path = request.path
    route = ROUTES.get(path[:2]) or ROUTES.get(path[:1])
    if route is None or len(path) - route.length not in route.arguments:
        shown = "/" + "/".join(path)
        return Reply.text(404, f"the virtual node's kubelet does not serve {shown[:200]!r}")
    if request.method not in route.methods:
        return Reply.text(405, f"{request.method} is not allowed here, only {' and '.join(route.methods)}")
    return route
