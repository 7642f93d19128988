"""Management cluster that reviews tokens, and a gateway that serves metrics over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.pki import Authority
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.serve import authorization
from vkgateway.serve.health import HealthServer

PATHS = {"prometheus": ["/metrics"], "operator": ["/metrics", "/arbiter/state", "/arbiter/what-if"], "nobody": []}


class Management:
    """Management cluster whose users have their names as tokens."""

    name = "management"

    def __init__(self) -> None:
        self.away = False
        self.asked: list[str] = []
        self.refused: set[str] = set()
        """Tokens that are not valid any more."""

    async def request(self, method: str, path: str, **given: Any) -> bytes:
        if self.away:
            raise errors.Unreachable("connection refused")
        self.asked.append(path)
        spec = msgspec.json.decode(given["body"])["spec"]
        if path.endswith("tokenreviews"):
            known = spec["token"] in PATHS.keys() - self.refused
            return msgspec.json.encode(
                {"status": {"authenticated": known, "user": {"username": spec["token"]} if known else {}}}
            )
        asked = spec["nonResourceAttributes"]
        assert asked["verb"] == "get"
        return msgspec.json.encode({"status": {"allowed": asked["path"] in PATHS[spec["user"]]}})


@asynccontextmanager
async def over_tls(
    management: Management, authority: Authority, *, state: ArbiterReport | None = None, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[str]:
    """Serve a gateway's metrics and state, and yield their URL."""
    pair = authority.issue("vkgateway", ips=("127.0.0.1",), server=True)
    health = HealthServer(address="127.0.0.1", port=0, checks={}, state=lambda: msgspec.json.encode(state or {}))
    tls = authorization.server_context(cert=pair.cert_pem, key=pair.key_pem)
    answer = health.answer_request
    async with authorization.metrics_listener(management, answer, tls=tls, clock=clock) as listener:  # type: ignore[arg-type]
        yield f"https://127.0.0.1:{await listener.listen_tcp('127.0.0.1', 0)}"
