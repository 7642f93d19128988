"""Metrics of compute nodes in the Prometheus text format, filtered by a tenant's pods, with the tenant's names. Pure.

For /metrics/cadvisor and /metrics/probes. A node returns thousands of lines, which are split once; only their labels
are parsed (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from vkgateway.nodes.target import PlacedPod

_NAMESPACE_SEPARATOR: Final = "--"
_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} ([+-]?(?:Inf|NaN|[0-9.]+(?:[eE][+-]?\d+)?)(?: -?\d+)?)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_NAMESPACE: Final = re.compile(r'[{,]namespace="([^"\\]*)"')
_POD: Final = re.compile(r'[{,]pod="([^"\\]*)"')
_POD_CGROUP: Final = re.compile(r"pod[0-9a-f]{8}-[0-9a-f]{4}-")
_TRANSLATED_LABELS: Final = frozenset(("container", "namespace", "pod", "pod_uid", "id", "image", "name"))
"""Labels whose values are the tenant's names or are generated here."""

Key = tuple[str, str]
"""Namespace and name of a compute pod."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a pod. `family` is the metric name of the HELP and TYPE lines."""

    family: str
    name: str
    labels: str
    value_and_time: str


@dataclass(frozen=True, slots=True)
class NodeSamples:
    """Samples of the tenants' pods on one compute node, and the comments of their families."""

    families: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[Key, list[Sample]] = field(default_factory=dict)


def parse_samples(data: bytes) -> NodeSamples:
    """Parse the response of a node. Lines without a pod of a tenant, and malformed lines, are skipped."""
    found = NodeSamples()
    family = ""
    for text in data.decode("utf-8", "replace").split("\n"):
        if text.startswith("# "):
            words = text.split(" ", 3)
            if len(words) > 2 and words[1] in ("HELP", "TYPE"):
                family = words[2]
                found.families.setdefault(family, []).append(text)
        elif _NAMESPACE_SEPARATOR in text:
            _add_sample(found, text, family)
    return found


def _add_sample(found: NodeSamples, text: str, family: str) -> None:
    namespace, pod, line = _NAMESPACE.search(text), _POD.search(text), _LINE.fullmatch(text)
    if namespace and pod and line and _NAMESPACE_SEPARATOR in namespace.group(1):
        name, labels, rest = line.groups()
        key = namespace.group(1), pod.group(1)
        found.samples.setdefault(key, []).append(Sample(family or name, name, labels, rest))


def render_tenant_samples(placed: Iterable[tuple[PlacedPod, NodeSamples]]) -> bytes:
    """Return the samples of pods by family, with the tenant's names."""
    comments: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    for pod, node_samples in placed:
        for line in node_samples.samples.get((pod.namespace, pod.name), ()):
            labels = _tenant_labels(line.labels, pod)
            if labels is not None:
                comments.setdefault(line.family, node_samples.families.get(line.family, []))
                lines.setdefault(line.family, []).append(f"{line.name}{{{labels}}} {line.value_and_time}")
    text = [line for family in sorted(lines) for line in (*comments[family], *lines[family])]
    return "\n".join((*text, "")).encode()


def _tenant_labels(text: str, pod: PlacedPod) -> str | None:
    """Return the labels with the tenant's names, or None if they expose details of the compute cluster.

    Namespace and pod are the first labels of all samples: virtual-kubelet's end-to-end suite expects the pod's name in
    the second label.
    """
    labels = dict(_LABEL.findall(text))
    if "pod_uid" in labels and labels["pod_uid"] != pod.uid:
        return None  # an earlier pod of the same name
    if pod.uid and "id" in labels:
        if not _is_cgroup_of(labels["id"], pod.uid):
            return None
        # The label is the path of a control group on the machine. Its last part is the container's ID.
        labels["id"] = "/".join(("/kubepods", f"pod{pod.tenant_uid}", *filter(None, (labels.get("name"),))))
    if "pod_uid" in labels:
        labels["pod_uid"] = pod.tenant_uid
    labels = {**labels, "namespace": pod.tenant_namespace, "pod": pod.tenant_name}
    if any(
        word in value for key, value in labels.items() if key not in _TRANSLATED_LABELS for word in _hidden_words(pod)
    ):
        return None
    ordered = {key: labels[key] for key in ("namespace", "pod")} | labels
    return ",".join(f'{key}="{value}"' for key, value in ordered.items())


def _is_cgroup_of(path: str, uid: str) -> bool:
    """Return whether the path of a control group contains the pod's UID, or no UID. systemd's driver writes `_`."""
    normalized = path.replace("_", "-")
    return uid in normalized or not _POD_CGROUP.search(normalized)


def _hidden_words(pod: PlacedPod) -> Iterator[str]:
    """Return the words that values of a machine (devices, interfaces) must not contain."""
    return (word for word in (pod.namespace, pod.uid, pod.node) if word)
