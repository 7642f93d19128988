"""Kubernetes service discovery of Prometheus as files, because Debian's Prometheus has none.

Labels are those of Prometheus' documentation for `kubernetes_sd_config`, as far as scrape configurations use them here.
Prometheus itself relabels the targets and scrapes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster, Document

Target = tuple[str, dict[str, str]]


def write_targets(cluster: Cluster, scrape: Document, path: Path) -> None:
    """Replace the discovery of a scrape configuration by a file with the same targets."""
    found: list[Target] = []
    for discovery in scrape.pop("kubernetes_sd_configs"):
        if discovery["role"] == "node":
            found += _node_targets(cluster)
        else:
            assert discovery["role"] == "endpoints"
            with_nodes = discovery.get("attach_metadata", {}).get("node", False)
            for namespace in discovery["namespaces"]["names"]:
                found += _endpoint_targets(cluster, namespace, with_nodes=with_nodes)
    path.write_text(json.dumps([{"targets": [address], "labels": labels} for address, labels in found]))
    scrape["file_sd_configs"] = [{"files": [str(path)]}]


def _node_targets(cluster: Cluster) -> Iterator[Target]:
    for node in cluster.get("nodes")["items"]:
        address = next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        yield f"{address}:{port}", {"instance": node["metadata"]["name"], **_node_labels(node)}


def _endpoint_targets(cluster: Cluster, namespace: str, *, with_nodes: bool) -> Iterator[Target]:
    services = {each["metadata"]["name"]: each for each in cluster.get("services", "-n", namespace)["items"]}
    nodes = {each["metadata"]["name"]: each for each in cluster.get("nodes")["items"]}
    for endpoints in cluster.get("endpoints", "-n", namespace)["items"]:
        name = endpoints["metadata"]["name"]
        common = {
            "__meta_kubernetes_namespace": namespace,
            "__meta_kubernetes_service_name": name,
            **_metadata_labels("service", "label", services[name]["metadata"].get("labels")),
        }
        for subset in endpoints.get("subsets") or ():
            for address in subset.get("addresses") or ():
                node = nodes[address["nodeName"]] if "nodeName" in address else None
                labels = common | _address_labels(address) | (_node_labels(node) if node and with_nodes else {})
                for port in subset["ports"]:
                    yield (
                        f"{address['ip']}:{port['port']}",
                        labels | {"__meta_kubernetes_endpoint_port_name": port.get("name", "")},
                    )


def _address_labels(address: Document) -> dict[str, str]:
    target = address.get("targetRef") or {}
    labels = {
        "node_name": address.get("nodeName"),
        "address_target_kind": target.get("kind"),
        "address_target_name": target.get("name"),
    }
    return {f"__meta_kubernetes_endpoint_{name}": value for name, value in labels.items() if value}


def _node_labels(node: Document) -> dict[str, str]:
    metadata = node["metadata"]
    return {
        "__meta_kubernetes_node_name": metadata["name"],
        **_metadata_labels("node", "label", metadata.get("labels")),
        **_metadata_labels("node", "annotation", metadata.get("annotations")),
    }


def _metadata_labels(role: str, kind: str, values: Mapping[str, Any] | None) -> dict[str, str]:
    labels = {}
    for key, value in (values or {}).items():
        name = re.sub(r"[^a-zA-Z0-9_]", "_", key)
        labels[f"__meta_kubernetes_{role}_{kind}_{name}"] = value
        labels[f"__meta_kubernetes_{role}_{kind}present_{name}"] = "true"
    return labels
