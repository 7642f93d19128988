"""Writes of the gateway's pods to the compute cluster, which is the management cluster too, seen by a webhook."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.chart import SYSTEM, ChartPlatform
from tests.e2e.cluster import Document, eventually
from tests.e2e.release.replicas import name_of, wait_for_standby
from tests.e2e.webhooks import serve_webhook

_WEBHOOK: Final = "writes.example.org"
_CONFIGURATION: Final = "gateway-writes"
_USER: Final = f"system:serviceaccount:{SYSTEM}:vkgateway"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_REVIEW_GROUPS: Final = ("authentication.k8s.io", "authorization.k8s.io")
"""Groups of objects that are answered, not stored. Standbys create them too."""
_UNSEEN: Final = re.compile(rf'apiserver_admission_webhook_fail_open_count{{[^}}]*"{_WEBHOOK}"[^}}]*}} (\d+)')


@dataclass(frozen=True)
class Write:
    """Request that passed authorization and the other admission controllers. `time` is monotonic."""

    time: float
    pod: str
    """Name of the gateway's pod."""
    operation: str
    resource: str
    name: str


@dataclass
class Writes:
    """All writes since the start of the count."""

    seen: list[Write] = field(default_factory=list)

    def of(self, pod: str, resource: str = "") -> list[Write]:
        """Return the writes of one pod of the gateway, to one resource or to all."""
        return [write for write in self.seen if write.pod == pod and resource in {"", write.resource}]

    def record(self, request: Document) -> str:
        """Record a write, and allow it."""
        user, resource = request["userInfo"], request["resource"]["resource"]
        (pod,) = user["extra"][_POD_NAME]
        parts = [resource, *([request["subResource"]] if request.get("subResource") else [])]
        write = Write(time.monotonic(), pod, request["operation"], "/".join(parts), request.get("name", ""))
        self.seen.append(write)
        return ""


@contextlib.contextmanager
def count_writes(platform: ChartPlatform) -> Iterator[Writes]:
    """Count writes within the block, which begins when the leader's renewals of the Lease are seen."""
    writes = Writes()
    with serve_webhook(platform.host_address, writes.record) as client_config:
        platform.compute.apply(_configuration(client_config))
        try:
            leader = name_of(wait_for_standby(platform))
            eventually(lambda: writes.of(leader, "leases"), what="the leader's renewal of its Lease")
            yield writes
        finally:
            platform.compute.kubectl("delete", "validatingwebhookconfiguration", _CONFIGURATION)


def count_unseen(platform: ChartPlatform) -> int:
    """Return the number of writes that were accepted although the webhook did not answer."""
    return sum(map(int, _UNSEEN.findall(platform.compute.kubectl("get", "--raw", "/metrics"))))


def _configuration(client_config: Document) -> Document:
    groups = ", ".join(f"'{group}'" for group in _REVIEW_GROUPS)
    rule = {
        "apiGroups": ["*"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["*/*"],
    }
    webhook = {
        "name": _WEBHOOK,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 30,
        "clientConfig": client_config,
        "rules": [rule],
        "matchConditions": [
            {"name": "gateway", "expression": f"request.userInfo.username == '{_USER}'"},
            {"name": "stored", "expression": f"!(request.resource.group in [{groups}])"},
        ],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": _CONFIGURATION},
        "webhooks": [webhook],
    }
