"""Metrics of compute nodes in the Prometheus text format, cut to a tenant's pods and told in the tenant's words. Pure.

For /metrics/cadvisor and /metrics/probes: thousands of lines a node, which are split once and not understood beyond
their labels (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from vkgateway.kubelet.target import PlacedPod

_NAMESPACE_SEPARATOR: Final = "--"
_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} ([+-]?(?:Inf|NaN|[0-9.]+(?:[eE][+-]?\d+)?)(?: -?\d+)?)")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_NAMESPACE: Final = re.compile(r'[{,]namespace="([^"\\]*)"')
_POD: Final = re.compile(r'[{,]pod="([^"\\]*)"')
_POD_CGROUP: Final = re.compile(r"pod[0-9a-f]{8}-[0-9a-f]{4}-")
_TRANSLATED_LABELS: Final = frozenset(("container", "namespace", "pod", "pod_uid", "id", "image", "name"))
"""Labels whose values are the tenant's words, or are made here."""

Key = tuple[str, str]
"""Namespace and name of a compute pod."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a pod; `family` is the name that HELP and TYPE speak of."""

    family: str
    name: str
    labels: str
    value_and_time: str


@dataclass(frozen=True, slots=True)
class NodeSamples:
    """What one compute node said of pods of tenants: the comments of families, and the samples of each pod."""

    families: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[Key, list[Sample]] = field(default_factory=dict)


def parse_samples(data: bytes) -> NodeSamples:
    """Split a node's answer. Lines about no pod, about pods of no tenant, or that cannot be read, are left out."""
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
    """The samples of these pods, family by family, in the tenant's words."""
    comments: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    for pod, told in placed:
        for line in told.samples.get((pod.namespace, pod.name), ()):
            labels = _tenant_labels(line.labels, pod)
            if labels is not None:
                comments.setdefault(line.family, told.families.get(line.family, []))
                lines.setdefault(line.family, []).append(f"{line.name}{{{labels}}} {line.value_and_time}")
    text = [line for family in sorted(lines) for line in (*comments[family], *lines[family])]
    return "\n".join((*text, "")).encode()


def _tenant_labels(text: str, pod: PlacedPod) -> str | None:
    """The labels in the tenant's words; None where they still speak of what the tenant must not know.

    Namespace and pod come first, so that they have the same place in a pod's samples and in its containers':
    virtual-kubelet's end-to-end suite looks for the pod's name in second place.
    """
    labels = dict(_LABEL.findall(text))
    if "pod_uid" in labels and labels["pod_uid"] != pod.uid:
        return None  # an earlier pod of the same name
    if pod.uid and "id" in labels:
        if not _is_cgroup_of(labels["id"], pod.uid):
            return None
        # The path of a control group on the machine; of a pod's, its last part is the container's own id.
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
    """Whether a control group's path is of that pod; systemd's driver writes `_` for `-`. Without any UID it may be."""
    flat = path.replace("_", "-")
    return uid in flat or not _POD_CGROUP.search(flat)


def _hidden_words(pod: PlacedPod) -> Iterator[str]:
    """What a machine's words (devices, interfaces) might carry up."""
    return (word for word in (pod.namespace, pod.uid, pod.node) if word)
