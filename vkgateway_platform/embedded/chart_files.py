"""Files for an installation of the chart into an embedded cluster: its values, and the ComputeCluster."""

from __future__ import annotations

from typing import Any, Final

import yaml

from vkgateway.planes.atomic_files import write_file
from vkgateway.settings import config
from vkgateway_platform.embedded import compute
from vkgateway_platform.embedded.gateway_process import gateway_settings
from vkgateway_platform.embedded.hollow.nodes import POOL_LABEL
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.real_node_steps import POOL
from vkgateway_platform.embedded.realnode.images import PAUSE_IMAGE
from vkgateway_platform.embedded.realnode.options import NodeNetwork
from vkgateway_platform.embedded.record import PlatformRecord

_REAL_NODE: Final = {POOL_LABEL: POOL}
"""Selects the real node: hollow nodes run no programs."""
_STANDARD_OUTPUT: Final = "-"
_FILE_MODE: Final = 0o644


def write_chart_files(paths: PlatformPaths, record: PlatformRecord) -> None:
    """Write the values of the chart and the ComputeCluster with the pools of this platform."""
    pools = [*record.hollow_nodes, POOL]
    documents = {
        paths.gateway.chart_values: chart_values(paths, record),
        paths.gateway.compute_cluster: compute.compute_cluster(pools, hollow=record.hollow_nodes),
    }
    for path, document in documents.items():
        write_file(path, yaml.safe_dump(document, sort_keys=False).encode(), mode=_FILE_MODE)


def chart_values(paths: PlatformPaths, record: PlatformRecord) -> dict[str, Any]:
    """Return values with which the chart's gateway has the settings of an embedded gateway."""
    settings: config.Config = gateway_settings(paths, record=record)
    network = NodeNetwork(record.number)
    # Webhooks on this machine stay reachable.
    blocked = [network.all_pods_range, network.all_services_range]
    return {
        "nodeSelector": _REAL_NODE,
        "etcd": {"nodeSelector": _REAL_NODE, "persistence": {"size": "1Gi"}},
        "test": {"image": PAUSE_IMAGE, "pool": POOL},
        "config": {
            "controlPlanes": {"parameters": {"nodeSelector": _REAL_NODE, "blockedRanges": blocked}},
            "names": {"forwarder": settings.names.forwarder, "sources": list(settings.names.sources)},
            "services": {"range": settings.services.range, "tenantPrefix": settings.services.tenant_prefix},
            "arbiter": {
                "noticeSeconds": settings.arbiter.notice_seconds,
                "decisionLog": _STANDARD_OUTPUT,
                "usageLog": _STANDARD_OUTPUT,
            },
        },
    }
