"""Debian's Prometheus as a process that reads a platform's gateway and etcd with the alerts of deploy/monitoring."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, build_opener

import yaml

from operators.debian import unpack_package
from tests.e2e.cluster import Platform, eventually
from tests.support.machine import patience
from tests.support.monitoring import RULES, Query
from tests.support.ports import free_port

OPENER = build_opener(ProxyHandler({}))
READER = "prometheus-trial"
SCALED: Mapping[str, tuple[str, str]] = {
    # The longest time between two cycles while gangs wait is 30 s.
    "VkgatewayQueueStuck": ("[10m]", "[40s]"),
    # Five minutes would have to pass. The unit tests with promtool have the shipped value.
    "VkgatewayGuaranteeLate": ("> 300", "> 5"),
}
"""By alert: the part of its expression that tests shorten, and the replacement. All other thresholds are as shipped."""
_SUBJECTS = ("tenant", "pool", "compute_cluster", "certificate", "pod")
_ETCD_TARGETS = "etcd.json"
_ETCD_LABELS = {"service": "vkgateway-etcd"}


class Prometheus:
    """Client of a running Prometheus; `etcd_targets` is the file with the members of etcd that it reads."""

    def __init__(self, port: int, *, etcd_targets: Path) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._etcd_targets = etcd_targets
        self._started_at = time.time()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def firing(self) -> set[tuple[str, str]]:
        """Return the name of each firing alert with the object that it is about."""
        alerts = [alert for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"]
        return {
            (
                alert["labels"]["alertname"],
                next((alert["labels"][name] for name in _SUBJECTS if name in alert["labels"]), ""),
            )
            for alert in alerts
        }

    def wait_until_firing(self, alert: str, subject: str = "", *, seconds: float = 60) -> None:
        """Wait until an alert fires about an object."""
        eventually(lambda: (alert, subject) in self.firing(), seconds=seconds, what=f"{alert} {subject} fires")

    def wait_until_silent(self, alert: str, subject: str = "", *, seconds: float = 60) -> None:
        """Wait until an alert about an object has ended."""
        eventually(lambda: (alert, subject) not in self.firing(), seconds=seconds, what=f"{alert} {subject} ends")

    def fired_since(self, moment: float) -> set[str]:
        """Return the names of the alerts that fired since a time (seconds since the epoch)."""
        window = max(1, math.ceil(time.time() - moment))
        found = self.query(f'max by (alertname) (max_over_time(ALERTS{{alertstate="firing"}}[{window}s]))')
        return {series["metric"]["alertname"] for series in found}

    def has_data(self, query: Query) -> bool:
        """Return whether a panel shows a number: now, or at any time since the start if it is a graph."""
        if query.is_current:
            values = [series["value"] for series in self.query(query.expression)]
        else:
            period = {"start": str(self._started_at), "end": str(time.time()), "step": "2"}
            found = self._get("query_range", query=query.expression, **period)["result"]
            values = [value for series in found for value in series["values"]]
        return any(math.isfinite(float(value)) for _, value in values)

    def label_values(self, metric: str, label: str) -> list[str]:
        """Return the values of a label, as Grafana requests those of a variable."""
        found: Any = self._get(f"label/{label}/values", **{"match[]": metric})
        return list(found)

    def read_etcd(self, **urls: str) -> None:
        """Read these members of etcd from now on, by the name of their pod."""
        groups = [
            {
                "targets": [urlsplit(url).netloc],
                "labels": {"__scheme__": urlsplit(url).scheme, **_ETCD_LABELS, "pod": name.replace("_", "-")},
            }
            for name, url in urls.items()
        ]
        written = self._etcd_targets.with_suffix(".new")
        written.write_text(json.dumps(groups))
        written.replace(self._etcd_targets)

    def answers(self, expression: str) -> bool:
        """Return whether Prometheus runs and an expression has series."""
        with contextlib.suppress(URLError, ConnectionError):
            return bool(self.query(expression))
        return False

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        with OPENER.open(f"{self._url}/{path}?{urlencode(parameters)}", timeout=patience(20)) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


@contextlib.contextmanager
def start_prometheus(platform: Platform, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with a token that may read metrics. It reads every second, and alerts fire without delay.

    Raises:
        UnavailableError: the Debian package cannot be downloaded.
    """
    account = f"--serviceaccount=default:{READER}"
    platform.compute.kubectl("create", "serviceaccount", READER)
    platform.compute.kubectl("create", "clusterrolebinding", READER, "--clusterrole=vkgateway-metrics-reader", account)
    try:
        _write_configuration(platform, folder)
        with run_prometheus(folder) as found:
            found.read_etcd(vkgateway_etcd_0=f"https://127.0.0.1:{platform.status()['ports']['etcd']}")
            eventually(lambda: found.query("vkgateway_tenants"), seconds=60, what="Prometheus reads the gateway")
            yield found
    finally:
        platform.compute.kubectl("delete", "clusterrolebinding", READER)
        platform.compute.kubectl("delete", "serviceaccount", READER)


@contextlib.contextmanager
def run_prometheus(folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration `prometheus.yml` of a folder, in which it also stores its data.

    Raises:
        UnavailableError: the Debian package cannot be downloaded.
    """
    program = asyncio.run(unpack_package("prometheus", program="usr/bin/prometheus", report=print))
    port = free_port()
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
        found = Prometheus(port, etcd_targets=folder / _ETCD_TARGETS)
        eventually(lambda: found.answers("vector(1)"), seconds=60, what="Prometheus runs")
        yield found
    finally:
        process.terminate()
        process.wait(30)


def _write_configuration(platform: Platform, folder: Path) -> None:
    secret = platform.compute.get("secret", "-n", "vkgateway-system", "gateway-authority")
    (folder / "ca.crt").write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    (folder / "token").write_text(platform.compute.kubectl("create", "token", READER).strip())
    (folder / "rules.yaml").write_text(yaml.safe_dump(_prompt_rules()))
    gateway = {
        "job_name": "vkgateway",
        "scheme": "https",
        "authorization": {"credentials_file": str(folder / "token")},
        "tls_config": {"ca_file": str(folder / "ca.crt")},
        "static_configs": [{"targets": [urlsplit(platform.metrics_url()).netloc]}],
    }
    pki = platform.data_dir / "pki"
    etcd = {
        "job_name": "etcd",
        "tls_config": {
            "ca_file": str(pki / "etcd-ca.crt"),
            "cert_file": str(pki / "etcd-root.crt"),
            "key_file": str(pki / "etcd-root.key"),
        },
        "file_sd_configs": [{"files": [str(folder / _ETCD_TARGETS)]}],
    }
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [gateway, etcd],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))


def _prompt_rules() -> dict[str, Any]:
    """Return the rules without the time for which a condition must hold, and with scaled thresholds."""
    document: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in document["groups"] for rule in group["rules"]):
        rule.pop("for", None)
        shipped, scaled = SCALED.get(rule["alert"], ("", ""))
        assert shipped in rule["expr"], f"{rule['alert']} has no {shipped}"
        rule["expr"] = rule["expr"].replace(shipped, scaled) if shipped else rule["expr"]
    return document
