"""Counts of an API server from its metrics: what no machine changes (requests, bytes, watch events), and admission.

Names and labels of the metrics: https://kubernetes.io/docs/reference/instrumentation/metrics/
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from bench.samples import read_samples
from vkgateway.kube.client import Client

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_HEARTBEATS: Final = frozenset({"leases", "nodes", "nodes/status"})
_STATUS: Final = frozenset({"tenants", "tenants/status", "computeclusters/status"})
_REPAIRS: Final = frozenset({"namespaces", "priorityclasses"})
"""What the gateway applies again, in case that somebody has changed it."""
_BACKGROUND: Final = _HEARTBEATS | _STATUS | _REPAIRS
"""Resources that an idle platform writes."""
_BODY_VERBS: Final = {
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "apply": "APPLY",
    "delete": "DELETE",
    "delete_collection": "DELETECOLLECTION",
}


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Counts of one server, or of several together.

    Keys of requests and of their bytes are `VERB RESOURCE[/SUBRESOURCE]`, those of watches are resources.
    """

    requests: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    """Bytes of request bodies. The server does not count them by subresource."""
    bytes_out: Counter[str] = field(default_factory=Counter)
    """Bytes of answers, without those of watches."""
    watch_events: Counter[str] = field(default_factory=Counter)
    """Events, counted once for each watch that they were sent to."""
    watch_bytes: Counter[str] = field(default_factory=Counter)
    admission_ms: Counter[str] = field(default_factory=Counter)
    """Milliseconds in admission by operation and phase, such as `CREATE validate`."""

    def _counters(self) -> tuple[Counter[str], ...]:
        return (
            self.requests,
            self.bytes_in,
            self.bytes_out,
            self.watch_events,
            self.watch_bytes,
            self.admission_ms,
        )

    def __sub__(self, earlier: ServerCounts) -> ServerCounts:
        """Return what was counted since `earlier`."""
        return ServerCounts(*(now - before for now, before in zip(self._counters(), earlier._counters(), strict=True)))

    def __add__(self, other: ServerCounts) -> ServerCounts:
        """Return the counts of two servers together."""
        return ServerCounts(*(one + two for one, two in zip(self._counters(), other._counters(), strict=True)))

    def writes(self) -> dict[str, int]:
        """Return the number of writes by request, without those of an idle platform."""
        return {
            key: count
            for key, count in sorted(self.requests.items())
            if key.partition(" ")[0] in WRITES and key.partition(" ")[2] not in _BACKGROUND
        }

    def reads(self) -> int:
        """Return the number of reads of objects, and of new watches."""
        return sum(count for key, count in self.requests.items() if key.partition(" ")[0] in ("GET", "LIST", "WATCH"))


async def read_counts(*clients: Client) -> ServerCounts:
    """Return the counts of these API servers together since their start. The clients need the rights of an admin."""
    total = ServerCounts()
    for client in clients:
        total += parse_counts((await client.request("GET", "/metrics", timeout=60)).decode())
    return total


def parse_counts(text: str) -> ServerCounts:
    """Return the counts in a server's metrics, in the text format of Prometheus."""
    found = ServerCounts()
    for name, labels, value in read_samples(text, "apiserver_"):
        match name:
            case "apiserver_request_total":
                found.requests[_request(labels)] += int(value)
            case "apiserver_request_body_size_bytes_sum":
                verb = _BODY_VERBS.get(labels["verb"], labels["verb"])
                found.bytes_in[f"{verb} {labels['resource']}"] += int(value)
            case "apiserver_response_sizes_sum":
                found.bytes_out[_request(labels)] += int(value)
            case "apiserver_watch_events_total":
                found.watch_events[labels["resource"]] += int(value)
            case "apiserver_watch_events_sizes_sum":
                found.watch_bytes[labels["resource"]] += int(value)
            case "apiserver_admission_step_admission_duration_seconds_sum":
                # A Counter of floats: differences keep what is positive.
                found.admission_ms[f"{labels['operation']} {labels['type']}"] += 1000 * value  # type: ignore[assignment]
    return found


def _request(labels: dict[str, str]) -> str:
    resource, subresource = labels["resource"], labels["subresource"]
    return f"{labels['verb']} {resource}{f'/{subresource}' if resource and subresource else subresource}"
