"""Tests of the output of commands."""

import datetime
import json

import pytest
import yaml

from tests.fakes.clock import FakeClock
from vkgateway.api.objects import Condition, Meta
from vkgateway.api.types import Tenant, TenantStatus
from vkgateway.cli.age import format_age
from vkgateway.cli.description import resource_list, section_lines, table_lines
from vkgateway.cli.output import Column, print_objects
from vkgateway.cli.progress import Progress
from vkgateway.cli.tenant_create import Milestones

ROWS: list[dict[str, object]] = [{"name": "a", "size": 3}, {"name": "longer", "size": None}]
COLUMNS: tuple[Column[dict[str, object]], ...] = (
    Column("name", lambda row: row["name"]),
    Column("size", lambda row: row["size"], justify="right"),
)


def printed(capsys: pytest.CaptureFixture[str], output: str, *, single: bool = False) -> str:
    rows = ROWS[:1] if single else ROWS
    print_objects(rows, output=output, columns=COLUMNS, name=lambda row: str(row["name"]), single=single)
    return capsys.readouterr().out


def test_tables_without_terminal_are_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "table") == "NAME     SIZE\na           3\nlonger      -\n"


def test_names_are_on_separate_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "name") == "a\nlonger\n"


def test_json_is_an_array_and_a_single_object_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "json")) == ROWS
    assert json.loads(printed(capsys, "json", single=True)) == ROWS[0]


def test_yaml_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert yaml.safe_load(printed(capsys, "yaml")) == ROWS


def test_empty_table_prints_note_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_objects([], output="table", columns=COLUMNS, name=str, empty="Nothing here.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Nothing here.\n")


def test_empty_list_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    print_objects([], output="json", columns=COLUMNS, name=str)
    assert json.loads(capsys.readouterr().out) == []


def test_progress_without_terminal_prints_timed_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    with Progress(clock=clock) as progress:
        clock.seconds = 1.0
        progress("building")
        progress("building")
        clock.seconds = 2.5
        progress.done("built")
    assert capsys.readouterr().err == "[   1.0s] building\n[   2.5s] built\n"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172800, "2d"), (-5, "0s")],
)
def test_age_is_short(seconds: int, expected: str) -> None:
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    then = now - datetime.timedelta(seconds=seconds)
    assert format_age(then.strftime("%Y-%m-%dT%H:%M:%SZ"), now=now) == expected


def test_missing_timestamp_has_no_age() -> None:
    assert format_age(None) == ""


def test_empty_sections_print_none() -> None:
    assert list(section_lines("Pools", table_lines(("a",), ()))) == ["", "Pools:", "  none"]
    assert list(section_lines("Pools", table_lines(("a", "b"), [("1", "22")]))) == ["", "Pools:", "  A   B", "  1   22"]


def test_resource_lists_are_sorted() -> None:
    assert resource_list({"nvidia.com/gpu": 8, "cpu": "4"}) == "cpu=4, nvidia.com/gpu=8"
    assert resource_list({}) == "-"


def tenant(*conditions: tuple[str, str], observed: int = 2) -> Tenant:
    made = tuple(
        Condition(type=kind, status=status, message=f"{kind} says", observed_generation=observed)
        for kind, status in conditions
    )
    status = TenantStatus(observed_generation=observed, conditions=made)
    return Tenant(metadata=Meta(name="a", generation=2), status=status)


def test_each_milestone_is_reported_once() -> None:
    milestones = Milestones()
    assert list(milestones.new_milestones(tenant(("Accepted", "True")))) == ["Accepted: Accepted says"]
    assert list(milestones.new_milestones(tenant(("Accepted", "True")))) == []
    assert not milestones.is_complete
    everything = tenant(*((kind, "True") for kind in ("Accepted", "ControlPlaneReady", "VirtualNodesReady", "Ready")))
    assert len(list(milestones.new_milestones(everything))) == 2
    assert milestones.is_complete


def test_conditions_of_an_earlier_generation_do_not_count() -> None:
    milestones = Milestones()
    assert list(milestones.new_milestones(tenant(("Ready", "True"), observed=1))) == []
    assert not milestones.is_complete


def test_next_milestone_is_reported() -> None:
    milestones = Milestones()
    assert "waiting for the gateway" in milestones.next_milestone(tenant(observed=0))
    assert milestones.next_milestone(tenant(("Accepted", "Unknown"))) == "Accepted: Accepted says"
    assert milestones.next_milestone(tenant(("Accepted", "True"))) == "waiting for ControlPlaneReady"
