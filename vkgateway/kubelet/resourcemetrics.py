"""A kubelet's /metrics/resource and its own /metrics, made from pods' statistics. Pure.

Names, labels, texts and timestamps are those of pkg/kubelet/metrics/collectors (resource_metrics.go, volume_stats.go)
in Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vkgateway.model import times
from vkgateway.model.objects import Object

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
_NANO: Final = 1e-9
_CONTAINER: Final = ("container", "namespace", "pod")
_POD: Final = ("namespace", "pod")
_CPU: Final = ("cpu", "usageCoreNanoSeconds")
_MEMORY: Final = ("memory", "workingSetBytes")
_SWAP: Final = ("swap", "swapUsageBytes")
_CLAIM: Final = ("namespace", "persistentvolumeclaim")
_VOLUME: Final = (
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", "capacityBytes"),
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", "availableBytes"),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", "usedBytes"),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", "inodes"),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", "inodesFree"),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", "inodesUsed"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One family of metrics: its name without a counter's `_total`, its text, and where its values stand."""

    name: str
    text: str
    part: tuple[str, str]
    scale: float = 1.0
    counts: bool = False

    def family(self, labels: Sequence[str] = ()) -> Metric:
        """The family, still empty."""
        made = CounterMetricFamily if self.counts else GaugeMetricFamily
        return made(self.name, self.text, labels=labels)

    def add(self, family: Metric, told: Object, labels: dict[str, str]) -> None:
        """Add the value in a `NodeStats`, `PodStats` or `ContainerStats`, if it is there, as of its time."""
        part = told.get(self.part[0]) or {}
        value = part.get(self.part[1])
        if value is not None:
            name = f"{self.name}_total" if self.counts else self.name
            family.add_sample(name, labels, value * self.scale, timestamp=_seconds(part.get("time")))


def _shapes(what: str, label: str) -> tuple[Shape, Shape, Shape]:
    swap = "swap usage of the node" if what == "node" else f"amount of the {what} swap usage"
    return (
        Shape(
            f"{label}_cpu_usage_seconds",
            f"Cumulative cpu time consumed by the {what} in core-seconds",
            _CPU,
            scale=_NANO,
            counts=True,
        ),
        Shape(f"{label}_memory_working_set_bytes", f"Current working set of the {what} in bytes", _MEMORY),
        Shape(f"{label}_swap_usage_bytes", f"Current {swap} in bytes. Reported only on non-windows systems", _SWAP),
    )


_NODES: Final = _shapes("node", "node")
_PODS: Final = _shapes("pod", "pod")
_CONTAINERS: Final = _shapes("container", "container")


class _Families(Collector):
    """Families for `generate_latest`; those without samples are left out, as a kubelet does."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = [family for family in families if family.samples]

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def resource_metrics(node: Object, pods: list[Object]) -> bytes:
    """/metrics/resource from the virtual node's `NodeStats` and its pods' `PodStats`."""
    families: list[Metric] = []
    for shape in _CONTAINERS:
        family = shape.family(_CONTAINER)
        for pod in pods:
            for one in pod["containers"]:
                shape.add(family, one, {"container": str(one.get("name", "")), **_labels(pod)})
        families.append(family)
    families.append(_started(pods))
    for shape in _NODES:
        family = shape.family()
        shape.add(family, node, {})
        families.append(family)
    for shape in _PODS:
        family = shape.family(_POD)
        for pod in pods:
            shape.add(family, pod, _labels(pod))
        families.append(family)
    families.append(_no_error("resource_scrape_error"))
    families.append(_no_error("scrape_error"))
    return _text(families)


def own_metrics(node: str, pods: list[Object], *, running: int) -> bytes:
    """/metrics: of a kubelet's own figures those about pods and their volumes. `running` counts the running pods."""
    name = GaugeMetricFamily("kubelet_node_name", "The node's name. The count is always 1.", labels=("node",))
    name.add_metric((node,), 1)
    of_pods = GaugeMetricFamily("kubelet_running_pods", "Number of pods that have a running pod sandbox")
    of_pods.add_metric((), running)
    of_containers = GaugeMetricFamily(
        "kubelet_running_containers", "Number of containers currently running", labels=("container_state",)
    )
    of_containers.add_metric(("running",), sum(len(pod["containers"]) for pod in pods))
    return _text([name, of_containers, of_pods, *_volumes(pods)])


def _volumes(pods: list[Object]) -> list[Metric]:
    """Figures of claims, each once however many pods use it."""
    claims: dict[tuple[str, str], Object] = {}
    for pod in pods:
        for volume in pod.get("volume", ()):
            if claim := volume.get("pvcRef"):
                claims.setdefault((claim["namespace"], claim["name"]), volume)
    families: list[Metric] = []
    for name, text, field in _VOLUME:
        family = GaugeMetricFamily(name, text, labels=_CLAIM)
        for key, volume in claims.items():
            if volume.get(field) is not None:
                family.add_metric(key, volume[field])
        families.append(family)
    return families


def _started(pods: list[Object]) -> Metric:
    family = GaugeMetricFamily(
        "container_start_time_seconds", "Start time of the container since unix epoch in seconds", labels=_CONTAINER
    )
    for pod in pods:
        for one in pod["containers"]:
            moment = _seconds(one.get("startTime"))
            if moment is not None and moment > 0:
                labels = {"container": str(one.get("name", "")), **_labels(pod)}
                family.add_sample(family.name, labels, moment)
    return family


def _no_error(name: str) -> Metric:
    text = "1 if there was an error while getting container metrics, 0 otherwise"
    return GaugeMetricFamily(name, text, value=0)


def _labels(pod: Object) -> dict[str, str]:
    reference = pod["podRef"]
    return {"namespace": reference["namespace"], "pod": reference["name"]}


def _seconds(time: str | None) -> float | None:
    return times.parse(time).timestamp() if time else None


def _text(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)
