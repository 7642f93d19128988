"""Collection of what the page shows: a cheap look at the gateway's state, from which a thread builds the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vkgateway.api.types import ComputeCluster, Tenant
from vkgateway.page.timeline import Timeline
from vkgateway.page.views import Facts
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.reasons.gang_names import Names
from vkgateway.scheduler.core.reasons.node_report import NodeReport, build_node_reports
from vkgateway.scheduler.core.reasons.report import build_report
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.scheduler.core.snapshot import Snapshot

Cycle = tuple[Snapshot, Decisions, float]
"""Input and output of a scheduling cycle, and its time in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """State of the gateway at one moment (seconds since the epoch). `cycle` is None while it does not lead."""

    time: float
    leading: bool
    cycle: Cycle | None
    tenants: Mapping[str, Tenant]
    compute_clusters: Mapping[str, ComputeCluster]
    timeline: Timeline

    def same_as(self, other: Observation) -> bool:
        """Return whether documents of both differ in nothing but the time."""
        return (
            self.cycle is other.cycle
            and self.leading == other.leading
            and _same_objects(self.tenants, other.tenants)
            and _same_objects(self.compute_clusters, other.compute_clusters)
        )


class PageSource(Protocol):
    """The gateway, as far as the page shows it."""

    def observe(self) -> Observation:
        """Return the current state in a short time."""

    def pod_names(self) -> Names:
        """Return namespaces and names of governed pods by UID. Called in another thread."""

    def answer_what_if(self, question: bytes) -> tuple[int, bytes]:
        """Return the HTTP status and the JSON answer to a question. Called in another thread."""


def build_facts(observation: Observation, names: Names) -> Facts:
    """Return the facts for documents, in time proportional to gangs, pods and nodes."""
    report = ArbiterReport(time=observation.time)
    nodes: tuple[NodeReport, ...] = ()
    if observation.cycle is not None:
        snapshot, decisions, _ = observation.cycle
        report = build_report(*observation.cycle, names=names)
        nodes = tuple(build_node_reports(snapshot, decisions))
    return Facts(
        time=observation.time,
        leading=observation.leading,
        report=report,
        nodes=nodes,
        tenants=observation.tenants,
        compute_clusters=observation.compute_clusters,
        timeline=observation.timeline,
    )


def _same_objects(old: Mapping[str, object], new: Mapping[str, object]) -> bool:
    return old.keys() == new.keys() and all(old[key] is new[key] for key in old)
