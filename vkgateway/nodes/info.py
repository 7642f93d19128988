"""Endpoints with a kubelet's information: /healthz, /configz, /pods, /runningpods."""

from __future__ import annotations

import msgspec

from vkgateway.api.errors import NotFoundError, VkgatewayError
from vkgateway.nodes.call import Call
from vkgateway.nodes.http import Reply
from vkgateway.nodes.token_reviewer import ALLOWED_CACHE_SECONDS, DENIED_CACHE_SECONDS

_JSON = "application/json"
_encode = msgspec.json.Encoder().encode


async def serve_healthz(_: Call) -> Reply:
    """Return ok."""
    return Reply(200, b"ok")


async def serve_configz(call: Call) -> Reply:
    """Return the settings of a KubeletConfiguration that apply to virtual nodes."""
    settings = {
        "enableServer": True,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": f"{ALLOWED_CACHE_SECONDS:g}s"},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {
                "cacheAuthorizedTTL": f"{ALLOWED_CACHE_SECONDS:g}s",
                "cacheUnauthorizedTTL": f"{DENIED_CACHE_SECONDS:g}s",
            },
        },
        "enableDebuggingHandlers": True,
        "streamingConnectionIdleTimeout": f"{call.idle_timeout:g}s",
    }
    return Reply(200, _encode({"kubeletconfig": settings}), _JSON)


async def serve_pods(call: Call) -> Reply:
    """Return the tenant's pods on the requested virtual node, or on all its virtual nodes."""
    return await _serve_pod_list(call, phase="")


async def serve_running_pods(call: Call) -> Reply:
    """Return the tenant's running pods."""
    return await _serve_pod_list(call, phase="Running")


async def _serve_pod_list(call: Call, *, phase: str) -> Reply:
    try:
        pods = await call.pod_lister(call.tenant, call.node, phase)
    except NotFoundError as error:
        return Reply.from_text(404, str(error))
    except VkgatewayError as error:
        return Reply.from_text(503, f"the pods cannot be listed now: {error}")
    return Reply(200, b'{"apiVersion":"v1","kind":"PodList","metadata":{},"items":[' + b",".join(pods) + b"]}", _JSON)
