"""GET /containerLogs/NAMESPACE/POD/CONTAINER: the log of a container, optionally followed.

The body passes unchanged from the compute API server to the tenant's API server, including its framing. A slow reader
applies back-pressure, and the tenant's API server detects a truncated log.
"""

from __future__ import annotations

from typing import Final

import structlog

from vkgateway.api.errors import NotFoundError
from vkgateway.kube.errors import Unreachable
from vkgateway.kube.resources import PODS
from vkgateway.kube.upgrade import RefusedStream, open_stream, run_tunnel
from vkgateway.nodes import error_replies
from vkgateway.nodes.call import Call, Rejected, check_container_name
from vkgateway.nodes.http import Reply, Request
from vkgateway.nodes.target import NoComputePodError

_LOG_OPTIONS: Final = frozenset(
    ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream")
)
"""Fields of PodLogOptions that a kubelet accepts, https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/."""

_log = structlog.get_logger(__name__)


async def serve_container_logs(call: Call, namespace: str, pod: str, container: str) -> Reply | None:
    """Stream the log of a container. Without a compute pod, return an explanation instead."""
    try:
        reply = await _stream_log(call, namespace, pod, container)
    except NoComputePodError as error:
        has_run, text = error.pod.log_replacement(
            check_container_name(container), previous=("previous", "true") in call.request.query
        )
        reply = Reply.from_text(200 if has_run else 400, text)
    except NotFoundError as error:
        reply = Reply.from_text(404, str(error))
    except Rejected as rejected:
        reply = rejected.reply
    return reply and _with_visible_status(reply)


def _with_visible_status(reply: Reply) -> Reply:
    """Replace statuses whose text API servers do not show to users (like 404) by 400, whose text they show.

    See `GenericHttpResponseChecker` in k8s.io/apiserver/pkg/registry/generic/rest/response_checker.go.
    """
    return Reply(400, reply.body) if reply.status in (404, 409, 413, 422) else reply


async def _stream_log(call: Call, namespace: str, pod: str, container: str) -> Reply | None:
    target = await call.find_target(namespace, pod)
    params = [("container", check_container_name(container)), *log_options(call.request)]
    try:
        response = await open_stream(
            target.client, PODS.path(target.namespace, target.name, "log"), params=params, timeout=None
        )
    except Unreachable as error:
        _log.warning("logs unavailable", tenant=call.tenant, namespace=namespace, pod=pod, error=str(error))
        return Reply.from_text(500, error_replies.unavailable_message("logs", pod=f"{namespace}/{pod}"))
    if isinstance(response, RefusedStream):
        _log.info(
            "logs refused",
            tenant=call.tenant,
            namespace=namespace,
            pod=pod,
            status=response.status,
            message=error_replies.error_message(response.body)[:512],
        )
        return error_replies.error_reply(response, target=target, namespace=namespace, what="logs")
    call.session.start_body(response.headers)
    await run_tunnel(call.session.stream, response.stream, one_way=True)
    return None


def log_options(request: Request) -> list[tuple[str, str]]:
    """Return the options to forward. `tail` is an old name of `tailLines`; its value `all` means no limit."""
    params = [(key, value) for key, value in request.query if key in _LOG_OPTIONS]
    for key, value in request.query:
        if key == "tail":
            params = [param for param in params if param[0] != "tailLines"]
            if value != "all":
                params.append(("tailLines", value))
    return params
