"""Statistics of pods on nodes that KWOK simulates, in a kubelet's form. Pure.

Simulated nodes have no kubelet that measures containers. The pod's annotations define the usage of its containers, with
the names of KWOK's simulation (https://kwok.sigs.k8s.io/docs/user/resource-usage-configuration/). Without annotations,
the usage is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from vkgateway.api import times
from vkgateway.api.objects import Object
from vkgateway.api.quantity import parse_quantity
from vkgateway.kinds.pods.policy.plugins import CPU_ANNOTATION, MEMORY_ANNOTATION
from vkgateway.nodes.exposition import NodeSamples, Sample
from vkgateway.nodes.podstats import NodePods
from vkgateway.nodes.target import PlacedPod, Simulation

NODE_ANNOTATION: Final = "kwok.x-k8s.io/node"
"""Annotation of the nodes that KWOK simulates."""
_NANO: Final = 10**9
_CPU: Final = "cpu_usage_seconds_total"
_MEMORY: Final = "memory_working_set_bytes"
_START: Final = "start_time_seconds"
_COMMENTS: Final[Mapping[str, tuple[str, str]]] = {
    _CPU: ("counter", "Cumulative cpu time consumed in core-seconds"),
    _MEMORY: ("gauge", "Current working set in bytes"),
    _START: ("gauge", "Start time since unix epoch in seconds"),
}
_encode: Final = msgspec.json.Encoder().encode


def read_simulation(status: Mapping[str, Any], annotations: Mapping[str, str]) -> Simulation | None:
    """Return the simulation in a compute pod's status and annotations, or None if no container runs."""
    statuses = status.get("containerStatuses") or ()
    running = [container["name"] for container in statuses if "running" in (container.get("state") or {})]
    started = status.get("startTime")
    if not running or not started:
        return None
    cpu, memory = _read_quantity(annotations, CPU_ANNOTATION), _read_quantity(annotations, MEMORY_ANNOTATION)
    return Simulation(containers=tuple(running), started=times.parse_time(started), cpu=cpu, memory=int(memory))


def _read_quantity(annotations: Mapping[str, str], name: str) -> float:
    """Return the quantity in an annotation, or 0 if the annotation is absent or malformed."""
    try:
        return max(0.0, float(parse_quantity(annotations.get(name, "0"))))
    except ValueError:
        return 0.0


def simulate_summary(pod: PlacedPod, simulation: Simulation, now: datetime) -> NodePods:
    """Return the pod's `PodStats` in the form of `podstats.parse_summary`."""
    start = {"startTime": times.render_time(simulation.started)}
    containers = [{"name": name, **start, **_usage_stats(simulation, 1, now)} for name in simulation.containers]
    return {pod.uid: _encode({**start, **_usage_stats(simulation, len(containers), now), "containers": containers})}


def _usage_stats(simulation: Simulation, count: int, now: datetime) -> Object:
    """Return the CPU and memory of `count` of the pod's containers."""
    stamp, memory = times.render_time(now), simulation.memory * count
    cores = {
        "usageNanoCores": round(simulation.cpu * count * _NANO),
        "usageCoreNanoSeconds": round(_cpu_seconds(simulation, now) * count * _NANO),
    }
    return {
        "cpu": {"time": stamp, **cores},
        "memory": {"time": stamp, "usageBytes": memory, "workingSetBytes": memory, "rssBytes": memory},
    }


def simulate_resource(pod: PlacedPod, simulation: Simulation, now: datetime) -> NodeSamples:
    """Return the pod's samples of /metrics/resource in the form of `exposition.parse_samples`."""
    lines = list(_build_samples(pod, simulation, now))
    return NodeSamples(
        {line.family: _family_comments(line.family) for line in lines}, {(pod.namespace, pod.name): lines}
    )


def _build_samples(pod: PlacedPod, simulation: Simulation, now: datetime) -> Iterator[Sample]:
    labels = f'namespace="{pod.namespace}",pod="{pod.name}"'
    for name in simulation.containers:
        of_container = f'container="{name}",{labels}'
        yield _build_sample("container", _CPU, of_container, _cpu_seconds(simulation, now), now)
        yield _build_sample("container", _MEMORY, of_container, simulation.memory, now)
        yield _build_sample("container", _START, of_container, simulation.started.timestamp(), now)
    count = len(simulation.containers)
    yield _build_sample("pod", _CPU, labels, _cpu_seconds(simulation, now) * count, now)
    yield _build_sample("pod", _MEMORY, labels, simulation.memory * count, now)


def _build_sample(subject: str, measure: str, labels: str, value: float, now: datetime) -> Sample:
    family = f"{subject}_{measure}"
    return Sample(family, family, labels, f"{value:.9g} {round(now.timestamp() * 1000)}")


def _family_comments(family: str) -> list[str]:
    kind, words = _COMMENTS[family.partition("_")[2]]
    return [f"# HELP {family} [STABLE] {words}", f"# TYPE {family} {kind}"]


def _cpu_seconds(simulation: Simulation, now: datetime) -> float:
    """Return the CPU time of each container in core-seconds."""
    return simulation.cpu * max(0.0, (now - simulation.started).total_seconds())


def simulate_nothing(_pod: PlacedPod, _simulation: Simulation, _now: datetime) -> NodeSamples:
    """Return no samples."""
    return NodeSamples()
