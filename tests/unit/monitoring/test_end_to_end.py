"""Every alert fires in an end-to-end test, or is listed here with the reason why it cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

from tests.e2e import test_alerts, test_monitoring
from tests.e2e.prometheus import SCALED
from tests.support.monitoring import alert_rules

NOT_FIRED: Mapping[str, str] = {}
"""Alerts that no end-to-end test fires, with the reason: what the embedded platform lacks."""


def fired(module: ModuleType) -> Iterator[str]:
    """Yield the alerts of the mark `fires` of each test. A fixture checks that they fire during the test."""
    for test in vars(module).values():
        for mark in getattr(test, "pytestmark", ()) if callable(test) else ():
            yield from mark.args if mark.name == "fires" else ()


def test_every_alert_fires_end_to_end_or_has_a_reason_why_not() -> None:
    names = [*fired(test_monitoring), *fired(test_alerts), *NOT_FIRED]
    assert sorted(names) == sorted(rule["alert"] for rule in alert_rules())
    assert all(NOT_FIRED.values())


def test_scaled_thresholds_exist() -> None:
    expressions = {rule["alert"]: rule["expr"] for rule in alert_rules()}
    assert all(shipped in expressions[alert] for alert, (shipped, _) in SCALED.items())
