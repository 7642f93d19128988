"""Each alert fires in its trouble and in no other, is documented, and asks for metrics that the gateway has."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.monitoring import RULES, alert_rules
from tests.unit.monitoring.expressions import unknown_metrics, unknown_values
from tests.unit.monitoring.series import HEALTHY, TROUBLES, Series
from tests.unit.test_docs import anchors

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/how-to/alerts.md"
RUNBOOKS = "docs/how-to/alerts.md#"
SEVERITIES = {"critical", "warning", "info"}
FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'


def test_each_alert_fires_in_its_trouble_and_in_no_other(promtool: Path, tmp_path: Path) -> None:
    healthy, troubles = [trial("healthy", HEALTHY, minutes=range(0, 150, 5))], []
    for name, trouble in TROUBLES.items():
        series = {key: values for key, values in HEALTHY.items() if key not in trouble.absent} | dict(trouble.series)
        troubles.append(trial(name, series, trouble.alerts, minutes=[trouble.minute]))
    # Only the healthy series have troubles that end between two evaluations: the others take a fifth of the time.
    files = [_write_trials(tmp_path, "1m", healthy), _write_trials(tmp_path, "5m", troubles)]
    result = subprocess.run([promtool, "test", "rules", *files], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def _write_trials(folder: Path, interval: str, trials: list[dict[str, Any]]) -> Path:
    file = folder / f"every-{interval}.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": trials}))
    return file


def trial(name: str, series: Series, alerts: tuple[str, ...] = (), *, minutes: Any) -> dict[str, Any]:
    """Return a test of promtool: which alerts fire at some minutes."""
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{"expr": FIRING, "eval_time": f"{at}m", "exp_samples": expected} for at in minutes],
    }


def test_every_alert_has_a_trouble() -> None:
    assert {alert for trouble in TROUBLES.values() for alert in trouble.alerts} == {
        rule["alert"] for rule in alert_rules()
    }


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    assert rule["labels"]["severity"] in SEVERITIES
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    anchor = rule["alert"].lower()
    assert notes["runbook_url"] == RUNBOOKS + anchor
    assert anchor in anchors(PAGE)


def test_the_page_has_no_other_alerts() -> None:
    described = {anchor for anchor in anchors(PAGE) if anchor.startswith("vkgateway")}
    assert described == {rule["alert"].lower() for rule in alert_rules()}


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_alerts_ask_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert unknown_metrics(rule["expr"]) == []
    assert unknown_values(rule["expr"]) == []
