"""exec, attach and portForward: connections upgraded to SPDY or WebSocket, tunnelled to the compute API server.

Streams, terminal sizes and exit codes are frames inside the tunnel. They pass unchanged, except for the error channel
(see `errorchannel`).
"""

from __future__ import annotations

from typing import Final

import structlog

from vkgateway.kube.errors import Unreachable
from vkgateway.kube.resources import PODS
from vkgateway.kube.upgrade import QUIET_SECONDS, Headers, OpenedStream, Params, RefusedStream, open_upgrade, run_tunnel
from vkgateway.nodes import error_replies, errorchannel
from vkgateway.nodes.call import Call, Rejected, parse_uid_and_container
from vkgateway.nodes.http import Reply, Request
from vkgateway.nodes.target import PodTarget

_STREAMS: Final = {"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"}
"""A kubelet's stream parameters to those of the pods/exec and pods/attach subresources."""
_TRUE: Final = frozenset(("1", "true"))
_PROTOCOLS: Final = frozenset(("spdy/3.1", "websocket"))
_PASSED_HEADERS: Final = frozenset(
    (
        "upgrade",
        "x-stream-protocol-version",
        "sec-websocket-accept",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-version",
    )
)
"""Headers of the handshake, in both directions. Other headers, like credentials, are not forwarded.

WebSocket extensions are not forwarded either: the error channel cannot be filtered in compressed frames."""

_log = structlog.get_logger(__name__)


async def serve_exec(call: Call, namespace: str, pod: str, *rest: str) -> Reply | None:
    """Run a command in a container: POST or GET /exec/NAMESPACE/POD[/UID]/CONTAINER."""
    uid, container = parse_uid_and_container(rest)
    params = [("container", container), *stream_params(call.request)]
    commands = [("command", value) for key, value in call.request.query if key == "command"]
    if not commands:
        raise Rejected(Reply.from_text(400, "you must specify at least 1 command for the container"))
    return await _serve_upgrade(call, namespace, pod, uid=uid, subresource="exec", params=[*params, *commands])


async def serve_attach(call: Call, namespace: str, pod: str, *rest: str) -> Reply | None:
    """Attach to a container's main process: POST or GET /attach/NAMESPACE/POD[/UID]/CONTAINER."""
    uid, container = parse_uid_and_container(rest)
    params = [("container", container), *stream_params(call.request)]
    return await _serve_upgrade(call, namespace, pod, uid=uid, subresource="attach", params=params)


async def serve_port_forward(call: Call, namespace: str, pod: str, uid: str = "") -> Reply | None:
    """Forward ports of a pod: POST or GET /portForward/NAMESPACE/POD[/UID]."""
    ports = [("ports", value) for key, value in call.request.query if key in ("port", "ports")]
    return await _serve_upgrade(call, namespace, pod, uid=uid, subresource="portforward", params=ports)


def stream_params(request: Request) -> list[tuple[str, str]]:
    """Return the requested streams as parameters of the subresource. Like a kubelet, raise Rejected without streams."""
    streams = {_STREAMS[key] for key, value in request.query if key in _STREAMS and value in _TRUE}
    if not streams - {"tty"}:
        raise Rejected(Reply.from_text(400, "you must specify at least 1 of stdin, stdout, stderr"))
    if "tty" in streams:
        streams.discard("stderr")  # a terminal has one output; API servers refuse both together
    return [(name, "true") for name in _STREAMS.values() if name in streams]


async def _serve_upgrade(
    call: Call, namespace: str, pod: str, *, uid: str, subresource: str, params: Params
) -> Reply | None:
    if call.request.upgrade_protocol not in _PROTOCOLS:
        return Reply.from_text(400, f"{subresource} needs an upgrade of the connection to SPDY/3.1 or WebSocket")
    target = await call.require_target(namespace, pod, uid=uid)
    log = _log.bind(tenant=call.tenant, namespace=namespace, pod=pod, subresource=subresource)
    try:
        response = await _open_subresource(call.request, target, subresource=subresource, params=params)
    except Unreachable as error:
        log.warning("stream unavailable", error=str(error))
        return Reply.from_text(500, error_replies.unavailable_message(subresource, pod=f"{namespace}/{pod}"))
    if isinstance(response, RefusedStream):
        log.info("stream refused", status=response.status, message=error_replies.error_message(response.body)[:512])
        return error_replies.error_reply(response, target=target, namespace=namespace, what=subresource)
    call.session.switch_protocols(_handshake_headers(response.headers))
    inward = None
    if errorchannel.is_needed(response.headers):
        generic = error_replies.unavailable_message(subresource, pod=f"{namespace}/{pod}")
        inward = errorchannel.ErrorChannelFilter(generic=generic, namespaces=(target.namespace, namespace))
    end = await run_tunnel(
        call.session.stream,
        response.stream,
        idle_timeout=call.idle_timeout,
        inward=inward,
        alive=target.is_alive,
        quiet=QUIET_SECONDS,
    )
    log.debug("stream ended", by=end.value)
    return None


async def _open_subresource(
    request: Request, target: PodTarget, *, subresource: str, params: Params
) -> OpenedStream | RefusedStream:
    return await open_upgrade(
        target.client,
        request.method,
        PODS.path(target.namespace, target.name, subresource),
        params=params,
        headers=_handshake_headers(request.headers),
    )


def _handshake_headers(headers: Headers) -> Headers:
    return tuple((name, value) for name, value in headers if name in _PASSED_HEADERS)
