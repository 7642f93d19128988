"""Files for an installation of the chart: pods of the chart run on the real node, with the platform's names."""

from __future__ import annotations

from pathlib import Path

import yaml

from vkgateway_platform.embedded import chart_files
from vkgateway_platform.embedded.options import PORTS
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.record import PlatformRecord


def test_values_have_the_names_of_the_platform_and_place_pods_on_the_real_node(tmp_path: Path) -> None:
    paths = PlatformPaths(tmp_path)
    chart_files.write_chart_files(paths, PlatformRecord(number=7, address="10.213.7.1", ports=dict(PORTS)))
    values = yaml.safe_load(paths.gateway.chart_values.read_text())
    node = {"platform.vkgateway.io/pool": "real"}
    assert values["nodeSelector"] == values["etcd"]["nodeSelector"] == node
    assert values["config"]["controlPlanes"]["parameters"]["nodeSelector"] == node
    assert values["config"]["names"]["forwarder"].startswith("10.213.7.2:")
    cluster = yaml.safe_load(paths.gateway.compute_cluster.read_text())
    assert [pool["name"] for pool in cluster["spec"]["pools"]] == ["a100", "v100", "real"]
