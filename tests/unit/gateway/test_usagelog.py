"""Tests of the usage log and its sums."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from vkgateway.runtime.jsonlines import ROTATED_FILES, rotated_path
from vkgateway.tenants.usage.log import UsageLog, read_usage, sum_usage
from vkgateway.tenants.usage.records import UsageRecord

HOUR = 3600.0


def usage(pod: str = "p", **fields: object) -> UsageRecord:
    given: dict[str, object] = {
        "tenant": "a",
        "namespace": "ns",
        "pod": pod,
        "gang": f"a/ns/gang/{pod}",
        "band": "guaranteed",
        "borrowed": False,
        "pool": "a100",
        "computeCluster": "local",
        "resource": "nvidia.com/gpu",
        "units": 8.0,
        "start": 0.0,
        "end": HOUR,
        **fields,
    }
    return msgspec.convert(given, UsageRecord)


def test_records_survive_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "usage.jsonl"
    first, second = usage("p"), usage("q", end=12.25, lost=3.5, why="PreemptionByVkgateway")
    UsageLog(file).write_records(first)
    UsageLog(file).write_records(second, usage("empty", end=0.0), usage("none", units=0.0))
    assert list(read_usage(file)) == [first, second]
    assert file.stat().st_mode & 0o777 == 0o600
    assert b'"computeCluster":"local"' in file.read_bytes()


def test_torn_line_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    UsageLog(file).write_records(usage("p"))
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert list(read_usage(file)) == [usage("p")]
    UsageLog(file).write_records(usage("q"))
    assert list(read_usage(file)) == [usage("p"), usage("q")]


def test_rotated_file_is_still_read(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    size = len(msgspec.json.encode(usage("p0"))) + 1
    log = UsageLog(file, max_bytes=2 * size)
    for number in range(9):
        log.write_records(usage(f"p{number}"))
    assert [found.pod for found in read_usage(file)] == [f"p{number}" for number in range(9)]
    for number in range(9, 20):
        log.write_records(usage(f"q{number}"))
    kept = [found.pod for found in read_usage(file)]
    assert kept[-1] == "q19"
    assert len(kept) <= 2 * (ROTATED_FILES + 1) < 20
    assert not rotated_path(file, ROTATED_FILES + 1).exists()


def test_failing_usage_log_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "usage.jsonl").mkdir()
    log = UsageLog(tmp_path / "usage.jsonl")
    log.write_records(usage())
    (tmp_path / "usage.jsonl").rmdir()
    log.write_records(usage())
    assert list(read_usage(tmp_path / "usage.jsonl")) == [usage()]


def test_missing_log_has_no_records(tmp_path: Path) -> None:
    assert list(read_usage(tmp_path / "usage.jsonl")) == []


def test_hours_are_summed_by_keys() -> None:
    usages = [
        usage("p", units=8.0, end=2 * HOUR),
        usage("q", units=4.0, borrowed=True, band="low"),
        usage("r", tenant="b", pool="v100", units=1.0),
    ]
    by_tenant = sum_usage(usages, since=0.0, until=10 * HOUR, by=["tenant"])
    assert [(found.by, found.hours, found.borrowed_hours, found.pods) for found in by_tenant] == [
        ({"tenant": "a"}, 20.0, 4.0, 2),
        ({"tenant": "b"}, 1.0, 0.0, 1),
    ]
    assert [found.by for found in sum_usage(usages, since=0.0, until=10 * HOUR, by=["pool", "band"])] == [
        {"pool": "a100", "band": "guaranteed"},
        {"pool": "a100", "band": "low"},
        {"pool": "v100", "band": "guaranteed"},
    ]
    (whole,) = sum_usage(usages, since=0.0, until=10 * HOUR, by=[])
    assert (whole.by, whole.hours) == ({}, 21.0)


def test_tenants_of_one_name_are_not_summed() -> None:
    usages = [
        usage("p", tenantUid="0a-1", units=8.0),
        usage("p", tenantUid="0b-1", units=4.0),
        usage("q", tenant="b", tenantUid="0c-1", units=1.0),
        usage("r", tenant="b", units=2.0),
    ]
    found = sum_usage(usages, since=0.0, until=10 * HOUR, by=["tenant"])
    assert [(total.by["tenant"], total.hours, total.pods) for total in found] == [
        ("a (0a)", 8.0, 1),
        ("a (0b)", 4.0, 1),
        ("b", 3.0, 2),
    ]
    by_uid = sum_usage(usages[:2], since=0.0, until=10 * HOUR, by=["tenantUid"])
    assert [total.by["tenantUid"] for total in by_uid] == ["0a-1", "0b-1"]


@pytest.mark.parametrize(
    ("since", "until", "hours", "lost"),
    [
        (0.0, 10 * HOUR, 32.0, 8.0),
        (1 * HOUR, 3 * HOUR, 16.0, 0.0),
        (3.5 * HOUR, 10 * HOUR, 4.0, 4.0),
        (0.0, 3.25 * HOUR, 26.0, 2.0),
        (4 * HOUR, 10 * HOUR, None, None),
    ],
)
def test_only_usage_in_period_counts(since: float, until: float, hours: float | None, lost: float | None) -> None:
    found = sum_usage([usage(end=4 * HOUR, lost=HOUR)], since=since, until=until, by=["tenant"])
    assert [(one.hours, one.lost_hours) for one in found] == ([] if hours is None else [(hours, lost)])


def test_pod_with_several_records_counts_once() -> None:
    parts = [usage(end=HOUR), usage(start=HOUR, end=2 * HOUR)]
    (found,) = sum_usage(parts, since=0.0, until=3 * HOUR, by=["tenant"])
    assert (found.pods, found.hours) == (1, 16.0)


def test_overlapping_records_count_once() -> None:
    records = [
        usage(end=HOUR, borrowed=True),
        usage(end=2 * HOUR),
        usage(end=2 * HOUR),
        usage(end=3 * HOUR, lost=2 * HOUR, why="PreemptionByVkgateway"),
        usage(end=1.5 * HOUR, resource="example.org/nic", units=1.0),
    ]
    (found,) = sum_usage(records, since=0.0, until=9 * HOUR, by=[])
    assert (found.hours, found.borrowed_hours, found.lost_hours) == (8 * 3 + 1.5, 8.0, 16.0)
    (late,) = sum_usage(records[:4], since=2.5 * HOUR, until=9 * HOUR, by=[])
    assert (late.hours, late.lost_hours, late.pods) == (4.0, 4.0, 1)
