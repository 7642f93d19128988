"""Configurations of Volcano's scheduler under which gangs or guarantees would not work."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vkgateway.scheduler.backends.volcano.check import configuration_problems

SHIPPED = yaml.safe_load(Path("deploy/volcano/scheduler-configmap.yaml").read_text())["data"]["volcano-scheduler.conf"]


def test_shipped_configuration_is_suitable() -> None:
    assert list(configuration_problems(SHIPPED)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (" reclaim,", "", "without the action reclaim"),
        ("enqueue, ", "", "without the action enqueue"),
        ("enableReclaimable: false", "enableReclaimable: true", "enableReclaimable"),
        ("    enableReclaimable: false\n", "", "enableReclaimable"),
        ("enablePreemptable: false", "enablePreemptable: true", "enablePreemptable"),
        ("name: capacity", "name: proportion", "without the plugin capacity"),
        ("name: nodeorder", "name: overcommit", "wait forever"),
        ("  - name: capacity\n- plugins:", "- plugins:\n  - name: capacity", "in the tier of conformance"),
        ("- name: gang", "- name: other", "incomplete gangs start"),
        ("tiers:", "layers:", "cannot be read"),
        ("actions:", "- actions: [", "cannot be read"),
    ],
)
def test_problem_is_told(old: str, new: str, problem: str) -> None:
    assert old in SHIPPED
    found = list(configuration_problems(SHIPPED.replace(old, new)))
    assert any(problem in each for each in found), found


def test_configuration_of_the_chart_is_unsuitable() -> None:
    tiers = "tiers: [{plugins: [{name: priority}, {name: gang}, {name: conformance}]}]"
    text = f"actions: 'enqueue, allocate, backfill'\n{tiers}"
    assert len(list(configuration_problems(text))) == 4
