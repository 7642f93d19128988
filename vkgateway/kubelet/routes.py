"""Which endpoint answers which path: those of the kubelet API, and the webhook that gates pods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from vkgateway.kubelet import gate, info, interactive, logs
from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply, Request

_READ: Final = ("GET",)
_STREAM: Final = ("GET", "POST")
"""GET is for browsers' WebSockets."""


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint: its path's first segment, how many more there are, the methods, whether it is a stream."""

    endpoint: Callable[..., Awaitable[Reply | None]]
    arguments: int
    methods: tuple[str, ...]
    stream: bool = False

    async def __call__(self, call: Call) -> Reply | None:
        """Answer the call; its path has the right number of segments."""
        return await self.endpoint(call, *call.request.path[1:])


ROUTES: Final[dict[str, Route]] = {
    "containerLogs": Route(logs.container_logs, 3, _READ, stream=True),
    "exec": Route(interactive.run, 3, _STREAM, stream=True),
    "attach": Route(interactive.attach, 3, _STREAM, stream=True),
    "portForward": Route(interactive.port_forward, 2, _STREAM, stream=True),
    "admission": Route(gate.admission, 1, ("POST",)),
    "healthz": Route(info.healthz, 0, _READ),
    "configz": Route(info.configz, 0, _READ),
    "pods": Route(info.pods, 0, _READ),
    "runningpods": Route(info.running_pods, 0, _READ),
}


def find(request: Request) -> Route | Reply:
    """The route of a request, or the refusal."""
    first = request.path[0] if request.path else ""
    route = ROUTES.get(first)
    if route is None or len(request.path) - 1 != route.arguments:
        shown = "/" + "/".join(request.path)
        return Reply.text(404, f"the virtual node's kubelet does not serve {shown[:200]!r}")
    if request.method not in route.methods:
        return Reply.text(405, f"{request.method} is not allowed here, only {' and '.join(route.methods)}")
    return route
