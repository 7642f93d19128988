"""Templates of pools for an external scheduler: replacement, and errors with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from vkgateway.api.scheduling import scheduling_problems
from vkgateway.api.templates import render_template, render_templates, template_keys
from vkgateway.api.types import Pool, PoolScheduling


def problems(**scheduling: Any) -> str:
    fields: dict[str, Any] = {"mode": "external", "scheduler_name": "gpu-scheduler", **scheduling}
    return "; ".join(scheduling_problems(Pool(name="a100", scheduling=PoolScheduling(**fields))))


def test_known_placeholders_are_replaced() -> None:
    values = {"tenant": "team", "gang": "team-1"}
    assert render_template("root.{tenant}", values) == "root.team"
    assert render_templates({"a/b": "{gang}", "c": "1"}, values) == {"a/b": "team-1", "c": "1"}


def test_json_in_a_value_is_kept() -> None:
    template = '[{"name": "{gang}", "minMember": {minimum}, "labels": {}}]'
    assert render_template(template, {"gang": "g", "minimum": "2"}) == '[{"name": "g", "minMember": 2, "labels": {}}]'
    assert not problems(pod_annotations={"yunikorn.apache.org/task-groups": template})


def test_keys_of_labels_and_annotations_belong_to_the_pool() -> None:
    scheduling = PoolScheduling(pod_labels={"queue": "{queue}"}, pod_annotations={"x/y": "1"})
    assert template_keys(scheduling) == {"queue", "x/y"}


@pytest.mark.parametrize(
    "scheduling",
    [
        {},
        {"pod_labels": {"yunikorn.apache.org/app-id": "{gang}", "queue": "root.{tenant}"}},
        {"pod_annotations": {"gang.scheduling.koordinator.sh/min-available": "{minimum}"}},
        {"priority_class_name": "external-{band}"},
        {"queue": "root.{tenant}"},
        {"pod_labels": {"example.com/empty": ""}},
    ],
)
def test_usable_templates_have_no_error(scheduling: dict[str, Any]) -> None:
    assert not problems(**scheduling)


@pytest.mark.parametrize(
    ("scheduling", "texts"),
    [
        ({"scheduler_name": ""}, ["scheduling.schedulerName is empty", "name the scheduler"]),
        (
            {"pod_labels": {"queue": "{team}"}},
            ["podLabels[queue] '{team}'", "placeholder {team}", "use {tenant}"],
        ),
        ({"pod_annotations": {"a": "{Gang}"}}, ["podAnnotations[a]", "unknown placeholder {Gang}"]),
        ({"pod_labels": {"queue": "root/{tenant}"}}, ["'root/{tenant}' is no label value", "or podAnnotations"]),
        ({"pod_labels": {"queue": "-{tenant}"}}, ["is no label value"]),
        ({"pod_labels": {"queue": "{tenant}.{gang}"}}, ["may have 86 characters", "at most 63", "shorten it"]),
        (
            {"pod_labels": {"vkgateway.io/tenant": "x"}},
            ["[vkgateway.io/tenant]", "use a key of the scheduler"],
        ),
        ({"pod_annotations": {"tenant-label.vkgateway.io/x": "x"}}, ["has a key of vkgateway"]),
        ({"pod_labels": {"a/b/c": "x"}}, ["is no key of a label", "example.com/name"]),
        ({"priority_class_name": "{gang}"}, ["priorityClassName '{gang}'", "use {tenant}, {pool}, {band}"]),
        ({"priority_class_name": "High"}, ["priorityClassName 'High' is no name"]),
    ],
)
def test_errors_name_pool_field_value_and_way_out(scheduling: dict[str, Any], texts: list[str]) -> None:
    found = problems(**scheduling)
    assert "pool 'a100'" in found
    for text in texts:
        assert text in found


def test_templates_of_other_modes_are_not_checked() -> None:
    assert not problems(mode="volcano", scheduler_name="", pod_labels={"queue": "{team}"})
