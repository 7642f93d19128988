"""What a kubelet tells of itself: /healthz, /configz, /pods, /runningpods."""

from __future__ import annotations

import msgspec

from vkgateway.kubelet.call import Call
from vkgateway.kubelet.http import Reply

_JSON = "application/json"
_encode = msgspec.json.Encoder().encode


async def healthz(_: Call) -> Reply:
    """Say that the endpoint is up."""
    return Reply(200, b"ok")


async def configz(call: Call) -> Reply:
    """The few settings of a kubelet's configuration that mean something here."""
    idle = f"{call.idle_timeout:g}s"
    config = {"kubeletconfig": {"enableServer": True, "streamingConnectionIdleTimeout": idle}}
    return Reply(200, _encode(config), _JSON)


async def pods(call: Call) -> Reply:
    """The caller's pods on all its virtual nodes, which share this endpoint."""
    return Reply(200, _encode({**_POD_LIST, "items": list(call.pods(call.tenant))}), _JSON)


async def running_pods(call: Call) -> Reply:
    """Those of the caller's pods that are running."""
    running = [pod for pod in call.pods(call.tenant) if pod.get("status", {}).get("phase") == "Running"]
    return Reply(200, _encode({**_POD_LIST, "items": running}), _JSON)


_POD_LIST = {"apiVersion": "v1", "kind": "PodList", "metadata": {}}
