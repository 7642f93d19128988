"""Debian's Prometheus as a process that reads a platform's gateway with the alerts of deploy/monitoring."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

import yaml

from operators.debian import unpack_package
from tests.e2e.cluster import Platform, eventually

ROOT = Path(__file__).parents[2]
OPENER = build_opener(ProxyHandler({}))
READER = "prometheus-trial"


class Prometheus:
    """Client of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def firing(self) -> set[tuple[str, str]]:
        """Return the name of each firing alert with the object that it is about."""
        alerts = [alert for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]
        subjects = ("tenant", "pool", "compute_cluster", "certificate")
        return {
            (
                alert["labels"]["alertname"],
                next((alert["labels"][name] for name in subjects if name in alert["labels"]), ""),
            )
            for alert in alerts
        }

    def is_reading(self) -> bool:
        """Return whether Prometheus has read the gateway."""
        with contextlib.suppress(URLError, ConnectionError):
            return bool(self.query("vkgateway_tenants"))
        return False

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        with OPENER.open(f"{self._url}/{path}?{urlencode(parameters)}", timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


@contextlib.contextmanager
def start_prometheus(platform: Platform, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with a token that may read metrics. It reads every second, and alerts fire without delay.

    Raises:
        UnavailableError: the Debian package cannot be downloaded.
    """
    program = asyncio.run(unpack_package("prometheus", program="usr/bin/prometheus", report=print))
    account = f"--serviceaccount=default:{READER}"
    platform.compute.kubectl("create", "serviceaccount", READER)
    platform.compute.kubectl("create", "clusterrolebinding", READER, "--clusterrole=vkgateway-metrics-reader", account)
    try:
        port = _free_port()
        _write_configuration(platform, folder)
        with (folder / "prometheus.log").open("w") as log:
            process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            found = Prometheus(port)
            eventually(found.is_reading, seconds=60, what="Prometheus reads the gateway")
            yield found
        finally:
            process.terminate()
            process.wait(30)
    finally:
        platform.compute.kubectl("delete", "clusterrolebinding", READER)
        platform.compute.kubectl("delete", "serviceaccount", READER)


def _write_configuration(platform: Platform, folder: Path) -> None:
    secret = platform.compute.get("secret", "-n", "vkgateway-system", "gateway-authority")
    (folder / "ca.crt").write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    (folder / "token").write_text(platform.compute.kubectl("create", "token", READER).strip())
    rules = (ROOT / "deploy/monitoring/rules.yaml").read_text()
    (folder / "rules.yaml").write_text(re.sub(r"^ +for: .*\n", "", rules, flags=re.MULTILINE))
    scrape = {
        "job_name": "vkgateway",
        "scheme": "https",
        "authorization": {"credentials_file": str(folder / "token")},
        "tls_config": {"ca_file": str(folder / "ca.crt")},
        "static_configs": [{"targets": [urlsplit(platform.metrics_url()).netloc]}],
    }
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port
