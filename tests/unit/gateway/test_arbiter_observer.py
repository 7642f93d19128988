"""Tests of the arbiter observer: logs, state, usage of running pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.arbiter.simulated_cluster import KEY, LOW, Cluster, make_gang, make_node, make_quota
from vkgateway.kinds.pods.translation.conditions import RUN_LIMIT_REACHED
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.service.accounting import PodRun
from vkgateway.scheduler.service.decisionlog import LogEntry
from vkgateway.scheduler.service.decisionlog import read_entries as read_decisions
from vkgateway.serve import arbiter_observer
from vkgateway.serve.arbiter_observer import ArbiterObserver
from vkgateway.settings.config import Arbiter
from vkgateway.tenants.usage.log import UsageLog, read_usage
from vkgateway.tenants.usage.records import UsageRecord

NAMES: Mapping[str, tuple[str, str]] = {
    "b/ns/gang/low-0": ("ns", "low-0"),
    "b/ns/gang/low-1": ("ns", "low-1"),
    "1234": ("ns", "web"),
}


def watch(folder: Path, *, names: Mapping[str, tuple[str, str]] = NAMES, **options: Any) -> ArbiterObserver:
    settings = Arbiter(decision_log=str(folder / "decisions.jsonl"), usage_log=str(folder / "usage.jsonl"))
    return ArbiterObserver(settings, pod_names=lambda: names, **options)


def seen(made: ArbiterObserver, there: Cluster) -> None:
    """Report a cycle to the observer."""
    snapshot = there.snapshot()
    decisions = decide(snapshot, there.now)
    made.log_cycle(snapshot, decisions, there.now)
    made.cycle_decided(snapshot, decisions, now=there.now, seconds=0.001)


def cluster() -> Cluster:
    there = Cluster([make_node("n0")], [make_quota("a", 4), make_quota("b")])
    there.add(make_gang("b/ns/gang/low", "b", [2, 2], band=LOW))
    there.run_for(2)
    there.add(make_gang("a/ns/pod/u", "a", [8]))
    return there


def test_interim_usage_of_running_pods_is_logged(tmp_path: Path) -> None:
    names, there = dict(NAMES), cluster()
    made = watch(tmp_path, names=names, uid_of=lambda tenant: f"uid-of-{tenant}")
    assert made.record_running(there.now) == 0
    seen(made, there)
    assert made.record_running(there.now + 58) == 2
    first, second = read_usage(tmp_path / "usage.jsonl")
    assert first == UsageRecord(
        tenant="b",
        tenant_uid="uid-of-b",
        namespace="ns",
        pod="low-0",
        gang="b/ns/gang/low",
        band="low",
        borrowed=True,
        pool="pool",
        compute_cluster="compute",
        resource="nvidia.com/gpu",
        units=2.0,
        start=1000.0,
        end=there.now + 58,
    )
    assert second.pod == "low-1"
    names.clear()
    assert made.record_running(there.now + 60) == 0


def test_usage_counts_as_borrowed_until_promotion(tmp_path: Path) -> None:
    made = watch(tmp_path, names={"a/ns/gang/y-0": ("ns", "y-0")})
    there = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 8)])
    there.add(make_gang("a/ns/gang/x", "a", [8]))
    there.run_for(1)
    there.add(make_gang("a/ns/gang/y", "a", [8]))
    there.run_for(1)
    del there.gangs["a/ns/gang/x"]
    seen(made, there)
    assert made.record_running(there.now + 60) == 1
    first, second = read_usage(tmp_path / "usage.jsonl")
    assert (first.pod, first.borrowed, first.end) == ("y-0", True, there.now)
    assert (second.pod, second.borrowed, second.end) == ("y-0", False, there.now + 60)


async def test_interim_usage_is_written_at_start_and_periodically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = cluster()
    made = watch(tmp_path, clock=FakeClock(there.now + 7, origin=EPOCH))
    seen(made, there)
    waits: list[float] = []

    async def passes(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(arbiter_observer, "_sleep", passes)
    with pytest.raises(asyncio.CancelledError):
        await made.run()
    assert waits == [60.0, 60.0]
    assert [found.pod for found in read_usage(tmp_path / "usage.jsonl")] == ["low-0", "low-1"] * 2
    assert {found.end for found in read_usage(tmp_path / "usage.jsonl")} == {there.now + 7}, (
        "by the clock by which pods end"
    )
    bare = ArbiterObserver(Arbiter())
    await bare.run()
    assert bare.record_running(1.0) == 0


def test_state_names_single_pods(tmp_path: Path) -> None:
    made, there = watch(tmp_path), Cluster([make_node("n0")], [make_quota("a", 4)])
    assert msgspec.json.decode(made.encode_state(), type=ArbiterReport) == ArbiterReport()
    there.add(make_gang("a/ns/pod/1234", "a", [9]))
    seen(made, there)
    (found,) = msgspec.json.decode(made.encode_state(), type=ArbiterReport).gangs
    assert (found.name, found.code) == ("web", "Infeasible")
    (entry,) = read_decisions(tmp_path / "decisions.jsonl")
    assert isinstance(entry, LogEntry)


def test_empty_log_is_not_created(tmp_path: Path) -> None:
    UsageLog(tmp_path / "usage.jsonl").write_records()
    assert list(tmp_path.iterdir()) == []


def test_what_if_question_changes_no_state(tmp_path: Path) -> None:
    made, there = watch(tmp_path), cluster()
    seen(made, there)
    before = made.encode_state()
    question = {"kind": "gang", "tenant": "a", "pods": 1, "requests": {"nvidia.com/gpu": 8}}
    status, answer = made.answer_what_if(msgspec.json.encode(question))
    assert (status, msgspec.json.decode(answer)["seen"]) == (200, there.now)
    assert made.encode_state() == before
    carried, fresh = decide(there.snapshot(), there.now + 1, there.cache), decide(there.snapshot(), there.now + 1)
    assert carried == fresh


def test_usage_is_counted_without_a_log() -> None:
    made, there = ArbiterObserver(Arbiter(), pod_names=lambda: NAMES), cluster()
    counted: list[UsageRecord] = []
    made.usage_recorded.subscribe(counted.extend)
    assert list(made.usage_until(there.now)) == []
    seen(made, there)
    low = there.gangs["b/ns/gang/low"]
    ending = tuple(replace(pod, state=PodState.ENDING, deadline=there.now + 5) for pod in low.pods)
    there.gangs[low.id] = replace(low, pods=ending)
    seen(made, there)
    found = list(made.usage_until(there.now))
    assert {record.pod for record in found} == {"low-0", "low-1"}, "pods that terminate hold their devices"
    assert counted == []
    verdict = Admission(AdmissionState.ADMITTED, node="n0", borrowed=True, pool=("compute", "pool"), since=1000.0)
    made.pod_ended(
        "b",
        PodRun(
            namespace="ns",
            name="low-0",
            gang="b/ns/gang/low",
            band="low",
            verdict=verdict,
            shape=ending[0].shape,
            start=1000.0,
            end=1020.0,
            checkpoint=0.0,
            end_reason="Ended",
        ),
    )
    assert [(record.pod, record.units, record.end, record.borrowed) for record in counted] == [
        ("low-0", 2.0, 1020.0, True)
    ]
    (end,) = (entry for entry in made.timeline.all_entries().values() if entry.kind == "end")
    assert (end.gang, end.units, end.since, end.time) == ("b/ns/gang/low", 2.0, 1000.0, 1020.0)


def test_eviction_at_a_run_limit_is_in_timeline_and_usage() -> None:
    made = ArbiterObserver(Arbiter())
    counted: list[UsageRecord] = []
    made.usage_recorded.subscribe(counted.extend)
    there = Cluster([make_node("n0")], [make_quota("b")])
    there.enforce_limits(low=100.0)
    there.add(make_gang("b/ns/gang/low", "b", [2], band=LOW))
    there.cycle()
    there.advance(90.0)
    seen(made, there)
    (entry,) = made.timeline.all_entries().values()
    assert (entry.kind, entry.reason, entry.reclaim) == ("evict", "its run reaches the limit of 1m40s", False)

    verdict = Admission(AdmissionState.EVICTING, code=RUN_LIMIT_REACHED, pool=KEY, borrowed=True, since=1000.0)
    (pod,) = there.gangs["b/ns/gang/low"].pods
    run = PodRun(
        namespace="ns",
        name="low-0",
        gang="b/ns/gang/low",
        band="low",
        verdict=verdict,
        shape=pod.shape,
        start=1000.0,
        end=1105.0,
        checkpoint=1060.0,
        end_reason=verdict.code,
    )
    made.pod_ended("b", run)
    assert [(record.why, record.lost) for record in counted] == [(RUN_LIMIT_REACHED, 45.0)]
    assert len(made.timeline.all_entries()) == 1, "the eviction is the only entry of the end"
